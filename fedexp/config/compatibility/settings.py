"""The traits, needs and conflicts of settings."""

from collections.abc import Iterator

from fedexp.config.compatibility.declaration import Declaration, needed
from fedexp.config.compatibility.traits import (
    GIVEN_WEIGHTS,
    KEEPS_MOMENTUM,
    SAVES_ROUNDS,
    SECOND_DERIVATIVES,
    SEVERAL_PROCESSES,
    Need,
)
from fedexp.config.keys import nodes
from fedexp.config.schema import Config, Engine


def declared_settings(config: Config) -> Iterator[Declaration]:
    """The declarations of settings that may conflict with other settings, the model or the method.

    A declaration has the key and the traits of one setting, and the traits of other components that
    this setting needs or forbids.
    """
    yield from _of_engine(config.engine)
    yield Declaration("fedexp", frozenset({Need.SIMULATION}))
    model, keeps = config.model, config.local.keep_optimizer
    for key, node in nodes(model.node, "model"):
        if weights := node.get("weights"):
            yield Declaration(f"{key}.weights={weights}", frozenset({GIVEN_WEIGHTS}))
    if model.init != "default":
        error = f"model.init={model.init}: would replace {{other}}; should be default"
        yield Declaration(f"model.init={model.init}", forbids={GIVEN_WEIGHTS: error})
    if keeps and config.optimizer.node.get("momentum"):
        yield Declaration("local.keep_optimizer=true", frozenset({KEEPS_MOMENTUM}))
    if config.checkpoint.keep:
        yield Declaration("checkpoint.keep", frozenset({SAVES_ROUNDS}))
    if minutes := config.limits.minutes:
        key = f"limits.minutes={minutes:g}"
        error = f"{key}: needs checkpoint.keep of at least 1, to go on later"
        yield Declaration(key, needs={SAVES_ROUNDS: error})


def declared_data_settings(config: Config, dataset: str) -> Iterator[Declaration]:
    """The declarations of settings that need a property of the data.

    Args:
        config: the run's config.
        dataset: the dataset's name, for errors.
    """
    data, partition = config.data, config.partition
    whole, classes = Need.ALL_CLIENTS, Need.CLASS_LABELS
    # Each row: key, configured value, the value that needs nothing, the needs of all other values.
    table: list[tuple[str, object, object, tuple[Need, ...]]] = [
        ("clients.held_out", config.clients.held_out, 0, (whole,)),
        ("data.subset", data.subset, None, (whole,)),
        ("data.validation", data.validation, 0, (whole,)),
        ("data.augment", data.augment, "none", (Need.IMAGES,)),
        ("partition.long_tail", partition.long_tail, None, (whole, classes)),
        ("partition.test_split", partition.test_split, "users", (whole,)),
        ("partition.shift.kinds", partition.shift.kinds, [], (whole, Need.IMAGES)),
    ]
    for key, value, plain, needs in table:
        if value != plain:
            advice = f"should be {'null' if plain is None else plain}"
            for need in needs:
                yield Declaration(key, needs=needed(f"{key}={value}", need, dataset, advice))


def _of_engine(engine: Engine) -> Iterator[Declaration]:
    if engine.processes > 1:
        key = f"engine.devices={engine.devices} engine.num_nodes={engine.num_nodes}"
        yield Declaration(key, frozenset({SEVERAL_PROCESSES}))
    if engine.compile:
        error = (
            "engine.compile: compiled code has no second derivatives, which this {other} needs; "
            "should be false"
        )
        yield Declaration("engine.compile", forbids={SECOND_DERIVATIVES: error})
