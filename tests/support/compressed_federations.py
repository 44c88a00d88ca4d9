"""Small federations for the tests of compression."""

SMALL = ["clients.count=4", "clients.per_round=4", "data.subset=120", "local.epochs=1"]
SMALL += ["objective=train/loss"]
SMALL += [f"measure.{name}=null" for name in ("personal", "prototypes", "partition", "angles")]
BATCHNORM = ["model.batch_norm=true"]
