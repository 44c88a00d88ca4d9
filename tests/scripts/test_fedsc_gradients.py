"""The strengths of FedSC's terms against their formulas."""

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate

SCRIPTS = Path(__file__).parents[2] / "scripts"
SMALL = ["clients.count=4", "clients.per_round=4", "data.subset=120", "local.epochs=1"]


def test_strengths_after_a_round_by_plain_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    script = import_module("papers.fedsc_gradients")
    federation = federate(*SMALL, "algorithm=fedsc", "loss.temperature=0.5", "loss.cpdr_weight=3")
    federation.run_round(1)
    found = script.strength(federation, 1)
    module: Any = federation.global_model(1)
    loss, linear = module.loss, module.head.linear
    inputs, labels = next(iter(federation.data.test.batches(script.BATCH)))
    z = module.backbone(inputs).detach().requires_grad_()
    assert found["length of z"] == pytest.approx(z.norm(dim=1).mean().item())
    distances = torch.stack([(z[:, None] - row).norm(dim=2).mean(dim=0) for row in loss.relational])
    assert found["U"] == pytest.approx(distances[loss.holds].mean().item(), rel=1e-4)

    of_entropy = (linear(z).softmax(dim=1) - F.one_hot(labels, 10)) @ linear.weight / len(z)
    known = loss.consistent_holds[labels]
    of_cpdr = 2 * (z - loss.consistent[labels])[known] / z.shape[1] / known.sum()
    assert found["CPDR, mse"] == pytest.approx((3 * of_cpdr.norm() / of_entropy.norm()).item())

    terms = []
    for sample, label in zip(z, labels, strict=True):
        cosines = F.cosine_similarity(sample, loss.relational, dim=2)
        scores = torch.where(loss.holds, (cosines / 0.5).exp(), 0)
        if loss.holds[:, label].any():
            terms.append(-(scores[:, label].sum() / scores.sum()).log())
    (of_rpcl,) = torch.autograd.grad(torch.stack(terms).mean(), z)
    expected = (of_rpcl.norm() / of_entropy.norm()).item()
    assert found["RPCL, none"] == pytest.approx(expected, rel=1e-4)
