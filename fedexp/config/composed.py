"""The config that Hydra composed, as plain dictionaries.

A preset may set a key that the option on the command line lacks. Such a key is dropped: for
example, ``algorithm=scaffold`` may set ``optimizer.momentum``, and ``optimizer=adam`` has no
momentum. A key from the command line or from the option's own file is never dropped, so a mistyped
key is still an error.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, MissingMandatoryValue, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedexp.config.build import argument_names, locate
from fedexp.config.keys import override_key
from fedexp.config.moved_modules import with_moved
from fedexp.config.schema import common_keys
from fedexp.errors import InputError


def to_dict(cfg: DictConfig, overrides: Sequence[str], folders: Collection[Path]) -> dict[str, Any]:
    """The config as nested dictionaries, without the presets' keys that the options lack.

    Args:
        cfg: the composed config.
        overrides: the command line's overrides, for example ["optimizer=adam", "rounds=5"].
        folders: the folders with the files of options, in Hydra's order.

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
        if refused := _input_error(error):  # of a resolver
            raise refused from None
        raise InputError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    values = {str(key): value for key, value in with_moved(values).items()}
    return _give_way(values, overrides, folders)


def _input_error(error: BaseException | None) -> InputError | None:
    """The InputError that led to this error; None if there is none."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error


def _give_way(
    values: dict[str, Any], overrides: Sequence[str], folders: Collection[Path]
) -> dict[str, Any]:
    """Drop each key that only a preset sets, if the option on the command line lacks the key."""
    typed = [override_key(override) for override in overrides]
    result = dict(values)
    for override in overrides:
        group, option = override_key(override), override.partition("=")[2]
        node = values.get(group)
        if isinstance(node, Mapping) and "_target_" in node:
            kept = {key.split(".")[1] for key in typed if key.startswith(f"{group}.")}
            result[group] = _without_strays(group, node, kept | _keys_of(group, option, folders))
    return result


def _without_strays(group: str, node: Mapping[str, Any], kept: Collection[str]) -> dict[str, Any]:
    """The group's node without unknown keys that are not in ``kept``."""
    try:
        known = argument_names(locate(group, node["_target_"])) | common_keys(group)
    except InputError:  # the later check of the whole config raises it again
        return dict(node)
    return {key: value for key, value in node.items() if key in known or key in kept}


def _keys_of(group: str, option: str, folders: Collection[Path]) -> set[str]:
    """The keys in the file of an option."""
    files = (folder / group / f"{option}.yaml" for folder in folders)
    file = next((path for path in files if path.is_file()), None)
    node: Any = OmegaConf.to_container(OmegaConf.load(file)) if file else {}
    own = node.get(group, node)  # below the group's name if the file is ``@package _global_``
    return set(own) if isinstance(own, Mapping) else set()
