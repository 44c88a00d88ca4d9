"""The schema of a config: types and ranges, checked before anything is loaded.

The fixed keys (``rounds``, ``clients.*``, ...) are the pydantic models below. A node with
``_target_`` (a head, a partition, a reader...) is checked against the signature of what it names,
so a new part brings its own schema in its own file. Defaults live in the YAML files and nowhere
else.
"""

import inspect
import typing
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    create_model,
)

from fedexp.errors import InputError

Node = dict[str, Any]
"""A config node with a ``_target_`` and its arguments."""

_Model = TypeVar("_Model", bound=BaseModel)
VAR_POSITIONAL, VAR_KEYWORD = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_STRICT = ConfigDict(
    extra="forbid",
    frozen=True,
    allow_inf_nan=False,
    arbitrary_types_allowed=True,
    protected_namespaces=(),
)


class Group(BaseModel):
    """A group of keys; anything not listed is an error."""

    model_config = _STRICT


class Clients(Group):
    """The population and the cohort."""

    count: PositiveInt
    per_round: PositiveInt
    ram_gib: PositiveFloat


class Local(Group):
    """Local training."""

    epochs: PositiveInt
    batch_size: PositiveInt
    grad_clip: PositiveFloat | None


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
    augment: Literal["none", "flip", "crop_flip"]
    cache: Path


class Partition(Common):
    """What every partition has."""

    long_tail: Annotated[float, Field(ge=1)] | None


class Engine(Common):
    """What every engine has."""

    device: Literal["auto", "cpu", "cuda", "mps"]
    devices: Annotated[int, Field(ge=1, le=1024)]  # more is a slip, and would be started
    num_nodes: PositiveInt
    precision: Literal["32-true", "bf16-mixed"]
    channels_last: Literal["auto"] | bool
    compile: bool
    deterministic: bool

    @property
    def processes(self) -> int:
        """One for each device."""
        return self.devices * self.num_nodes


class Membership(Group):
    """Membership inference on the final global model."""

    attack: Literal["off", "loss", "lira"]
    samples: PositiveInt
    shadows: Annotated[int, Field(ge=4, multiple_of=2)]
    epochs: PositiveInt


class Evaluation(Group):
    """What is measured, and when."""

    every: PositiveInt
    targets: list[Annotated[float, Field(gt=0, le=1)]]
    personal: Literal["all", "cohort", "off"]
    personal_every: PositiveInt
    batch_size: PositiveInt
    step_cosine: bool
    membership: Membership


class Checkpoint(Group):
    """What a run is resumed from."""

    every: NonNegativeInt
    keep: NonNegativeInt


class Wandb(Group):
    """Weights & Biases."""

    mode: Literal["offline", "online", "disabled"]
    project: str
    entity: str | None
    group: str | None
    job_type: str | None
    name: str | None
    tags: list[str]
    init_timeout: PositiveFloat
    finish_timeout: PositiveFloat


class Tracking(Group):
    """Where the numbers and pictures go."""

    wandb: Wandb
    tensorboard: bool
    heatmap_every: PositiveInt
    feature_clients: list[NonNegativeInt]
    projection: Literal["pca", "tsne"]
    progress: bool


class Published(Group):
    """A number that a paper reports for this experiment, to be compared with."""

    table: str
    algorithm: str
    metric: str
    value: Annotated[float, Field(ge=0, le=1)]


class Config(Group):
    """A whole experiment."""

    seed: NonNegativeInt
    rounds: PositiveInt
    objective: str
    clients: Clients
    local: Local
    data: Data
    partition: Partition
    model: Node
    head: Node
    loss: Node
    regularizer: Node
    personalization: Node
    sampler: Node
    aggregator: Node
    optimizer: Node
    faults: Node
    engine: Engine
    evaluation: Evaluation
    tracking: Tracking
    on_bad_update: Literal["quarantine", "raise"]
    checkpoint: Checkpoint
    resume: str | None
    paper: list[Published]


def validate(values: dict[str, Any]) -> Config:
    """The checked config. Raises InputError: one line with key, value and what is allowed."""
    config = _check(Config, values, prefix="")
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
            "tracking.feature_clients: draws local models, which evaluation.personal=off forgets"
        )
    return config


def build(key: str, node: Node, supplied: Sequence[str] = ()) -> Any:
    """Check a ``_target_`` node against the signature it names, and call it.

    Args:
        key: where the node stands in the config, for messages ("partition").
        node: ``_target_`` and its arguments.
        supplied: names of arguments that the caller will pass later; if any, the target is not
            called: a partial of it is returned.
    """
    node = dict(node)
    target = locate(key, node.pop("_target_", None))
    arguments = vars(_check(_arguments(target, supplied), node, prefix=f"{key}."))
    return partial(target, **arguments) if supplied else target(**arguments)


def locate(key: str, name: Any) -> Callable[..., Any]:
    """The class or function with this dotted name."""
    module, _, attribute = str(name).rpartition(".")
    try:
        found: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"{key}._target_={name}: cannot be imported ({error})") from error
    return found


def _arguments(target: Callable[..., Any], supplied: Sequence[str]) -> type[BaseModel]:
    """A model with one field for each argument of ``target`` that a config may set."""
    source = target.__init__ if inspect.isclass(target) else target
    hints = typing.get_type_hints(source, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(target).parameters.items()
        if name not in supplied and parameter.kind not in (VAR_POSITIONAL, VAR_KEYWORD)
    }
    return create_model("Arguments", __config__=_STRICT, **fields)


def _check(model: type[_Model], values: dict[str, Any], prefix: str) -> _Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(_one_line(error, model, prefix)) from error


def _one_line(error: ValidationError, model: type[BaseModel], prefix: str) -> str:
    """One problem as ``key=value: what is allowed``; a misspelt key explains a missing one."""
    problem = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    key = prefix + ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        group = model
        for step in problem["loc"][:-1]:
            group = typing.cast(type[BaseModel], group.model_fields[str(step)].annotation)
        return f"{key}: unknown key; there are {', '.join(sorted(group.model_fields)) or 'none'}"
    if problem["type"] == "missing":
        return f"{key}: is missing"
    message = problem["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return f"{key}={problem['input']}: {message}"
