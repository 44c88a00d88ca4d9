"""The config that Hydra composed, as plain dictionaries.

A preset may set a key that the option on the command line lacks. Such a key is dropped: for
example, ``algorithm=scaffold`` may set ``optimizer.momentum``, and ``optimizer=adam`` has no
momentum. A key from the command line is never dropped, so a mistyped key is still an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp.config.build import argument_names, locate
from fedexp.config.keys import override_key
from fedexp.config.schema import common_keys
from fedexp.errors import InputError


def to_dict(cfg: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """The config as nested dictionaries, without the presets' keys that the options lack.

    Args:
        cfg: the composed config.
        overrides: the command line's overrides, for example ["optimizer=adam", "rounds=5"].

    Raises:
        InputError: a value is missing or cannot be resolved.
    """
    try:
        values: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue:
        missing = sorted(OmegaConf.missing_keys(cfg))
        form = " ".join(f"{key}=VALUE" for key in missing)
        raise InputError(f"{', '.join(missing)}: must be given, as {form}") from None
    except OmegaConfBaseException as error:  # for example, "${...}" with an unknown key
        raise InputError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    return _give_way({str(key): value for key, value in values.items()}, overrides)


def _give_way(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Drop each key that only a preset sets, if the option on the command line lacks the key."""
    typed = [override_key(override) for override in overrides]
    result = dict(values)
    for group in typed:
        node = values.get(group)
        if isinstance(node, Mapping) and "_target_" in node:
            result[group] = _without_strays(group, node, typed)
    return result


def _without_strays(group: str, node: Mapping[str, Any], typed: Iterable[str]) -> dict[str, Any]:
    """The group's node without unknown keys; unknown keys from the command line stay."""
    try:
        known = argument_names(locate(group, node["_target_"])) | common_keys(group)
    except InputError:  # the later check of the whole config raises it again
        return dict(node)
    kept = {key.split(".")[1] for key in typed if key.startswith(f"{group}.")}
    return {key: value for key, value in node.items() if key in known or key in kept}
