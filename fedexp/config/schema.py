"""The schema of a config: types and ranges, checked before anything is loaded.

The fixed keys (``rounds``, ``clients.*``, ...) are the pydantic models below; a node with
``_target_`` is checked when it is built (``fedexp.config.build``). Defaults live in the YAML files
and nowhere else.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from fedexp.config.build import STRICT, Node, check
from fedexp.errors import InputError

# Upper bounds, far above any experiment, refuse typos that would fill the memory.
Rounds = Annotated[int, Field(gt=0, le=1_000_000)]
Population = Annotated[int, Field(gt=0, le=1_000_000)]
Epochs = Annotated[int, Field(gt=0, le=10_000)]


class Group(BaseModel):
    """A group of keys; anything not listed is an error."""

    model_config = STRICT


class Clients(Group):
    """The population and the cohort."""

    count: Population
    per_round: PositiveInt
    ram_gib: PositiveFloat


class Local(Group):
    """Local training."""

    epochs: Epochs
    batch_size: PositiveInt
    grad_clip: PositiveFloat | None
    keep_optimizer: bool


class Common(BaseModel):
    """Keys that every option of a group has; the others are arguments of its ``_target_``."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    @property
    def node(self) -> Node:
        """The option's own node."""
        return dict(self.model_extra or {})


class Data(Common):
    """What every dataset has."""

    subset: PositiveInt | None
    validation: Annotated[float, Field(ge=0, lt=1)]
    augment: Literal[
        "none", "flip", "crop_flip", "crop_flip_mean", "half_crop_flip", "crop_flip_rotate"
    ]
    cache: Path


class Partition(Common):
    """What every partition has."""

    long_tail: Annotated[float, Field(ge=1)] | None
    test_split: Literal["classes", "users"]


Init = Literal["default", "layer_default", "xavier_relu", "kaiming_fan_out"]
"""Initial weights; see ``fedexp.models.init``."""


class LoRA(Group):
    """Low-rank updates of linear layers; see ``fedexp.models.lora``."""

    rank: PositiveInt | None
    alpha: PositiveFloat
    targets: Annotated[list[str], Field(min_length=1)]


class Model(Common):
    """What every backbone has."""

    init: Init
    start_from: str | None
    train: Annotated[list[str], Field(min_length=1)] | None
    lora: LoRA


class Optimizer(Common):
    """What every local optimizer has."""

    round_decay: Annotated[float, Field(gt=0, le=1)]


class Engine(Common):
    """What every engine has."""

    device: Literal["auto", "cpu", "cuda"]
    devices: Annotated[int, Field(ge=1, le=1024)]  # a larger number is a typing error
    num_nodes: PositiveInt
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)]
    processes_per_device: Annotated[int, Field(ge=1, le=64)]
    balance: Literal["samples", "time"]
    precision: Literal["32-true", "bf16-mixed"]
    channels_last: Literal["auto"] | bool
    compile: bool
    deterministic: bool
    graph: Literal["auto"] | bool

    @property
    def processes(self) -> int:
        """One for each device, or ``processes_per_device``."""
        return self.devices * self.processes_per_device * self.num_nodes


class Membership(Group):
    """Membership inference on the final global model."""

    attack: Literal["off", "loss", "lira"]
    samples: PositiveInt
    shadows: Annotated[int, Field(ge=4, le=10_000, multiple_of=2)]
    epochs: Epochs


class Episodes(Group):
    """Few-shot evaluation on classes that nobody trains on."""

    ways: Annotated[int, Field(ge=2)]
    shots: PositiveInt
    queries: PositiveInt
    episodes: Annotated[int, Field(ge=2, le=10_000)]


PersonalMetrics = Annotated[
    list[Literal["uniform", "local", "test_split", "whole", "angles"]], Field(min_length=1)
]
"""What is measured of personal models; see ``fedexp.evaluation.personal``."""


class Evaluation(Group):
    """What is measured, and when."""

    every: PositiveInt
    targets: list[Annotated[float, Field(gt=0, le=1)]]
    personal: Literal["all", "cohort", "off"]
    personal_every: PositiveInt
    personal_metrics: PersonalMetrics
    personal_samples: PositiveInt | None
    batch_size: PositiveInt
    overlap: bool
    step_cosine: bool
    fewshot: Episodes
    membership: Membership


class Checkpoint(Group):
    """What a run is resumed from."""

    every: NonNegativeInt
    keep: NonNegativeInt


class Limits(Group):
    """What ends a run before its last round."""

    minutes: PositiveFloat | None


class Wandb(Group):
    """Weights & Biases."""

    mode: Literal["offline", "online", "disabled"]
    project: str
    entity: str | None
    group: str | None
    job_type: str | None
    name: str | None
    tags: list[str]
    artifact: bool
    init_timeout: PositiveFloat
    finish_timeout: PositiveFloat


class TrackerOption(Common):
    """What every entry of ``tracking.trackers`` has; optional, so that your own need not say it."""

    enabled: bool = True


class LossSurface(Group):
    """The test loss on a plane through models of a round."""

    rounds: list[PositiveInt]
    plane: Literal["local", "random"]
    points: Annotated[int, Field(ge=2, le=201)]
    samples: Annotated[int, Field(ge=2)]


class Tracking(Group):
    """Where metrics and figures are recorded."""

    trackers: dict[str, TrackerOption | None]
    wandb: Wandb
    tensorboard: bool
    heatmap_every: PositiveInt
    heatmap_zoom: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    feature_global: bool
    feature_clients: list[NonNegativeInt]
    feature_classes: list[NonNegativeInt | str]
    projection: Literal["pca", "tsne"]
    loss_surface: LossSurface
    progress: bool


class Published(Group):
    """A row of numbers that a paper reports for this experiment, to be compared with.

    Attributes:
        table: where they stand, such as ``Table 1``.
        metric: what was measured: a headline metric, or ``rounds_to/<target>`` in rounds.
        statistic: of which rounds: ``final``, ``best``, or ``mean_last5``.
        values: the override that chooses a method -> the published value.
        spread: the same methods -> the published standard deviation, where there is one.
        overrides: what else makes this cell, beside the preset.
    """

    table: str
    metric: str
    statistic: Literal["final", "best", "mean_last5"]
    values: dict[str, NonNegativeFloat]
    spread: dict[str, NonNegativeFloat] = {}
    overrides: list[str] = []

    @model_validator(mode="after")
    def _check_units(self) -> Self:
        counts_rounds = self.metric.startswith("rounds_to/")
        for method, value in self.values.items():
            if counts_rounds != (value > 1):
                unit = "a round, above 1" if counts_rounds else "a fraction"
                raise ValueError(f"{self.table}, {method}: {self.metric} should be {unit}")
        return self


class Config(Group):
    """A whole experiment."""

    seed: NonNegativeInt
    rounds: Rounds
    objective: str
    clients: Clients
    local: Local
    data: Data
    partition: Partition
    model: Model
    head: Node
    loss: Node
    regularizer: Node
    personalization: Node
    sampler: Node
    aggregator: Node
    optimizer: Optimizer
    schedule: Node
    faults: Node
    engine: Engine
    evaluation: Evaluation
    tracking: Tracking
    on_bad_update: Literal["quarantine", "raise"]
    checkpoint: Checkpoint
    limits: Limits
    resume: str | None
    paper: list[Published]


def common_keys(group: str) -> set[str]:
    """The keys that every option of a config group has, beside the arguments of its target."""
    field = Config.model_fields.get(group)
    model = field.annotation if field else None
    if isinstance(model, type) and issubclass(model, Common):
        return set(model.model_fields)
    return set()


def validate(values: dict[str, Any]) -> Config:
    """The checked config. Raises InputError: one line with key, value and what is allowed."""
    config = check(Config, values, prefix="")
    if config.clients.per_round > config.clients.count:
        raise InputError(
            f"clients.per_round={config.clients.per_round}: "
            f"must be at most clients.count={config.clients.count}"
        )
    for client in config.tracking.feature_clients:
        if client >= config.clients.count:
            raise InputError(
                f"tracking.feature_clients={config.tracking.feature_clients}: "
                f"must be below clients.count={config.clients.count}"
            )
    if config.tracking.feature_clients and config.evaluation.personal == "off":
        raise InputError(
            "tracking.feature_clients: draws local models, not kept with evaluation.personal=off"
        )
    if config.limits.minutes is not None and not config.checkpoint.keep:
        raise InputError(
            f"limits.minutes={config.limits.minutes:g}: "
            "needs checkpoint.keep of at least 1, to go on later"
        )
    late = [round for round in config.tracking.loss_surface.rounds if round > config.rounds]
    if late:
        raise InputError(
            f"tracking.loss_surface.rounds={config.tracking.loss_surface.rounds}: "
            f"must be at most rounds={config.rounds}"
        )
    return config
