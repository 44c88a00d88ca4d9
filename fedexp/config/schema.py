"""The schema of a config: types and ranges, checked before anything is loaded.

The pydantic models below check the fixed keys (``rounds``, ``clients.*``, ...). The arguments of a
``_target_`` are checked when its object is built (``fedexp.config.build``). The defaults of all
keys except ``enabled`` of a tracker are in the YAML files.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
)

from fedexp.config.build import STRICT, Node, check
from fedexp.errors import InputError
from fedexp.rounding import rounded_down

# No experiment comes near these upper bounds. They reject typing errors that would fill the RAM.
Rounds = Annotated[int, Field(gt=0, le=1_000_000)]
Population = Annotated[int, Field(gt=0, le=1_000_000)]
Epochs = Annotated[float, Field(gt=0, le=10_000)]
Steps = Annotated[int, Field(gt=0, le=1_000_000)]

Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]


def _local_epochs(value: Any) -> float | list[int]:
    """Check ``local.epochs``: one number, or the smallest and largest integer of a range."""
    if type(value) in (int, float) and 0 < value <= 10_000:
        return value  # type: ignore[no-any-return]  # an int stays an int, also in saved configs
    is_range = isinstance(value, list) and [type(each) for each in value] == [int, int]
    if is_range and 0 < value[0] <= value[1] <= 10_000:
        return list(value)
    raise ValueError(
        "should be a number above 0 and at most 10000, or a range of whole numbers such as [1, 5]"
    )


def _device(value: str) -> str:
    """Check ``engine.device``: a name, or the dotted name of a class."""
    if value in ("auto", "cpu", "cuda") or "." in value:
        return value
    raise ValueError("should be auto, cpu, cuda or an accelerator's class, as in package.Class")


def _not_an_option(value: Any) -> Any:
    """Refuse ``download=OPTION``: an option is chosen with ``compression@download=OPTION``."""
    if isinstance(value, str):
        raise ValueError(f"is chosen by compression@download={value}")
    return value


class Group(BaseModel):
    """A group of keys; an unknown key is an error."""

    model_config = STRICT


class Clients(Group):
    """The keys ``clients.*``: population, cohort and memory."""

    count: Population
    per_round: PositiveInt
    held_out: ShareBelowOne
    ram_gib: PositiveFloat

    def check(self) -> None:
        """Raise InputError if the cohort or the number of held-out clients does not fit."""
        held_out = rounded_down(self.held_out, self.count)
        if self.held_out and not held_out:
            raise InputError(
                f"clients.held_out={self.held_out:g}: rounds down to 0 of "
                f"clients.count={self.count} clients; should be 0 or at least {1 / self.count:g}"
            )
        if self.per_round > self.count - held_out:
            largest = f"clients.count={self.count}"
            if held_out:
                largest = (
                    f"{self.count - held_out}: {largest} without the clients of "
                    f"clients.held_out={self.held_out:g}"
                )
            raise InputError(f"clients.per_round={self.per_round}: must be at most {largest}")


class Local(Group):
    """The keys ``local.*``: settings of the clients' local training."""

    epochs: Annotated[int | float | list[int], PlainValidator(_local_epochs)]
    steps: Steps | None
    batch_size: PositiveInt
    last_batch: Literal["auto", "keep", "drop", "merge"]
    grad_clip: PositiveFloat | None
    keep_optimizer: bool


class Common(BaseModel):
    """The keys that all options of a config group have; other keys are ``_target_``'s arguments."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    @property
    def node(self) -> Node:
        """The keys that only this option has: ``_target_`` and its arguments."""
        return dict(self.model_extra or {})


class Data(Common):
    """The config keys that all datasets share."""

    subset: PositiveInt | None
    validation: ShareBelowOne
    augment: Literal[
        "none", "flip", "crop_flip", "crop_flip_mean", "half_crop_flip", "crop_flip_rotate"
    ]
    cache: Path


class FeatureShift(Group):
    """The transformations of each client's images; see ``fedexp.data.feature_shift``."""

    kinds: list[Literal["rotation", "colour", "blur"]]
    strength: Annotated[float, Field(ge=0, le=1)]


class Partition(Common):
    """The config keys that all partitions share."""

    long_tail: Annotated[float, Field(ge=1)] | None
    test_split: Literal["classes", "users"]
    shift: FeatureShift


Init = Literal["default", "layer_default", "xavier_relu", "kaiming_fan_out"]
"""Rules for initial weights; see ``fedexp.models.init``."""


class LoRA(Group):
    """Low-rank updates of linear layers; see ``fedexp.models.lora``."""

    rank: PositiveInt | None
    alpha: PositiveFloat
    targets: Annotated[list[str], Field(min_length=1)]


class Model(Common):
    """The config keys that all backbones share."""

    init: Init
    start_from: str | None
    train: Annotated[list[str], Field(min_length=1)] | None
    lora: LoRA


class Optimizer(Common):
    """The config keys that all local optimizers share."""

    round_decay: Annotated[float, Field(gt=0, le=1)]


class System(Common):
    """The config keys that all sources of simulated devices share."""

    deadline: PositiveFloat | None
    late: Literal["drop", "partial"]
    invite: PositiveInt | None


class Engine(Common):
    """The config keys that all engines share."""

    device: Annotated[str, AfterValidator(_device)]
    devices: Annotated[int, Field(ge=1, le=1024)]  # a larger number is a typing error
    num_nodes: PositiveInt
    meeting_timeout: PositiveFloat
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)]
    processes_per_device: Annotated[int, Field(ge=1, le=64)]
    balance: Literal["samples", "time"]
    precision: Literal["32-true", "bf16-mixed"]
    channels_last: Literal["auto"] | bool
    compile: Literal["reduce-overhead"] | bool
    deterministic: bool

    @property
    def processes(self) -> int:
        """The number of processes of the run, on all machines."""
        return self.devices * self.processes_per_device * self.num_nodes


class Evaluation(Group):
    """The keys ``evaluation.*``: how measures are computed."""

    batch_size: PositiveInt


class Checkpoint(Group):
    """The keys ``checkpoint.*``: how often to save a run, and what a resumed run may change."""

    every: NonNegativeInt
    keep: NonNegativeInt
    changed_code: Literal["refuse", "accept"]


class Limits(Group):
    """Limits that end a run before its last round."""

    minutes: PositiveFloat | None
    idle_rounds: PositiveInt | None


_OLD_MODES = {"dryrun": "offline", "run": "online"}
"""W&B's older names of its modes."""

_LONGEST = 128  # characters of a project, a run's name or a run's id in W&B


def _mode(value: Any) -> Any:
    return _OLD_MODES.get(value, value) if isinstance(value, str) else value


def _without(forbidden: str) -> AfterValidator:
    """A check that a text has 1 to 128 characters, without any of ``forbidden``."""

    def checked(value: str) -> str:
        if {*forbidden} & {*value} or not 1 <= len(value) <= _LONGEST:
            without = f", without any of {' '.join(forbidden)}" if forbidden else ""
            raise ValueError(f"should have 1 to {_LONGEST} characters{without}")
        return value

    return AfterValidator(checked)


class Wandb(Group):
    """Settings of the tracker Weights & Biases; W&B's rules for texts are checked here."""

    mode: Annotated[Literal["offline", "online", "disabled"], BeforeValidator(_mode)]
    project: Annotated[str, _without("/\\#?%:")]
    entity: str | None
    group: str | None
    job_type: str | None
    name: Annotated[str, _without("")] | None
    notes: str | None
    tags: list[str]
    id: Annotated[str, _without("/\\#?%:;,'\" ")] | None
    dir: Path | None
    artifact: bool
    init_timeout: PositiveFloat
    finish_timeout: PositiveFloat


class TrackerOption(Common):
    """An entry of ``tracking.trackers``; the key ``enabled`` is optional."""

    enabled: bool = True


class Tracking(Group):
    """Where metrics and figures are written."""

    trackers: dict[str, TrackerOption | None]
    wandb: Wandb
    tensorboard: bool
    progress: bool


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
    gradient: Node
    personalization: Node
    sampler: Node
    aggregator: Node
    optimizer: Optimizer
    schedule: Node
    faults: Node
    system: System
    availability: Node
    compression: Node
    download: Annotated[Node, BeforeValidator(_not_an_option)]
    coordination: Node
    engine: Engine
    evaluation: Evaluation
    measure: dict[str, Node | None]
    tracking: Tracking
    on_bad_update: Literal["quarantine", "raise"]
    checkpoint: Checkpoint
    limits: Limits
    resume: str | None
    paper: list[Node]

    @property
    def targets(self) -> list[float]:
        """Target accuracies; for each one the summary has the first round that reached it."""
        return list((self.measure.get("global") or {}).get("targets", ()))


def common_keys(group: str) -> set[str]:
    """The keys that all options of a config group share, without arguments of ``_target_``."""
    field = Config.model_fields.get(group)
    model = field.annotation if field else None
    if isinstance(model, type) and issubclass(model, Common):
        return set(model.model_fields)
    return set()


def validate(values: dict[str, Any]) -> Config:
    """Check the config. The line of an InputError has the key, its value and the valid values."""
    config = check(Config, values, prefix="")
    config.clients.check()
    if config.local.steps is not None and isinstance(config.local.epochs, list):
        raise InputError(
            f"local.steps={config.local.steps}: cannot be combined with a range, "
            f"local.epochs={config.local.epochs}; make local.epochs one number"
        )
    return config
