"""W&B's environment variables as defaults of the keys ``tracking.wandb.*``.

The YAML default of such a key is ``${wandb:KEY,DEFAULT}``. So each key has one order: the command
line, then a preset, then the environment variable, then ``DEFAULT``. An empty variable counts as
not set. W&B itself reads all its other variables, such as ``WANDB_API_KEY``.
"""

import os
from collections.abc import Collection, Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from fedexp.config.keys import override_key
from fedexp.errors import InputError

NODE = "tracking.wandb"
VARIABLES = {
    "mode": "WANDB_MODE",
    "project": "WANDB_PROJECT",
    "entity": "WANDB_ENTITY",
    "group": "WANDB_RUN_GROUP",
    "job_type": "WANDB_JOB_TYPE",
    "name": "WANDB_NAME",
    "notes": "WANDB_NOTES",
    "tags": "WANDB_TAGS",
    "id": "WANDB_RUN_ID",
    "dir": "WANDB_DIR",
    "init_timeout": "WANDB_INIT_TIMEOUT",
}
"""Key of ``tracking.wandb`` -> the variable that sets it."""

DISABLED = "WANDB_DISABLED"
"""If this variable is true, the mode is ``disabled``, whatever ``WANDB_MODE`` is."""

COMMAND_LINE, PRESET, DEFAULT = "command line", "preset", "default"

_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_RESOLVER = "${wandb:"


def value_of(key: str, default: Any) -> Any:
    """The value of a key from its environment variable; ``default`` if the variable is not set.

    Raises InputError, which names the variable, if the value is not valid for the key.
    """
    name = variable_of(key)
    if name is None:
        value = default
    elif name == DISABLED:
        value = "disabled"
    else:
        value = _checked(key, name, os.environ[name])
    # OmegaConf cannot resolve a plain list with ``--cfg job --resolve``.
    return ListConfig(value) if isinstance(value, list) else value


def variable_of(key: str) -> str | None:
    """The name of the environment variable that sets this key now; None if there is none."""
    if key == "mode" and _is_true(DISABLED):
        return DISABLED
    name = VARIABLES[key]
    return name if os.environ.get(name) else None


def origins(config: DictConfig, overrides: Sequence[str]) -> dict[str, str]:
    """Key of ``tracking.wandb`` -> where its value comes from.

    The origin is ``command line``, ``preset``, the name of a variable, or ``default``.

    Args:
        config: the composed config, in which ``${...}`` is not resolved.
        overrides: the overrides on the command line.
    """
    typed = {override_key(each) for each in overrides}
    raw: Any = OmegaConf.to_container(OmegaConf.select(config, NODE) or OmegaConf.create({}))
    return {key: _origin(key, raw.get(key), typed) for key in VARIABLES}


def _origin(key: str, raw: Any, typed: Collection[str]) -> str:
    if {f"{NODE}.{key}", NODE} & {*typed}:
        return COMMAND_LINE
    if not str(raw).startswith(_RESOLVER):
        return PRESET
    return variable_of(key) or DEFAULT


def _is_true(name: str) -> bool:
    typed = os.environ.get(name, "").strip().lower()
    if typed and typed not in (*_TRUE, *_FALSE):
        raise InputError(f"{name}={os.environ[name]}: should be true or false")
    return typed in _TRUE


def _checked(key: str, name: str, typed: str) -> Any:
    """The value of a variable, checked like the key's value in the config."""
    from pydantic import create_model

    from fedexp.config.build import STRICT, check
    from fedexp.config.schema import Wandb

    field: Any = (Wandb.model_fields[key].rebuild_annotation(), ...)
    model = create_model("Variables", __config__=STRICT, **{name: field})
    value: Any = typed.split(",") if key == "tags" else typed
    return getattr(check(model, {name: value}, prefix=""), name)
