"""The config that Hydra composed, as plain dictionaries and checked.

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
from fedexp.config.schema import Config, common_keys, validate
from fedexp.config.written_types import check_written
from fedexp.errors import InputError


def checked(cfg: DictConfig, overrides: Sequence[str], folders: Collection[Path]) -> Config:
    """The checked config, without the presets' keys that the chosen options lack.

    Args:
        cfg: the composed config.
        overrides: the command line's overrides, for example ["optimizer=adam", "rounds=5"].
        folders: the folders with the files of options, in Hydra's order.

    Raises:
        InputError: a key is unknown, or a value is missing, invalid or cannot be resolved.
    """
    values = to_dict(cfg)
    config = validate(values)  # this and the next check import no PyTorch; the last may
    check_written(values)
    kept = without_strays(values, overrides, folders)
    return config if kept == values else validate(kept)


def to_dict(cfg: DictConfig) -> dict[str, Any]:
    """The composed config as nested dictionaries.

    Raises InputError if a value is missing or cannot be resolved.
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
    return {str(key): value for key, value in with_moved(values).items()}


def _input_error(error: BaseException | None) -> InputError | None:
    """The InputError that led to this error; None if there is none."""
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error


def without_strays(
    values: dict[str, Any], overrides: Sequence[str], folders: Collection[Path]
) -> dict[str, Any]:
    """Drop each key that only a preset sets, if the class of the chosen option lacks the key.

    A class is imported only if there is such a key.
    """
    result = dict(values)
    for override in overrides:
        group, option = override_key(override), override.partition("=")[2]
        node = values.get(group)
        if not isinstance(node, Mapping) or "_target_" not in node:
            continue
        if strays := preset_keys(group, option, node, overrides, folders):
            try:
                strays -= argument_names(locate(f"{group}._target_", node["_target_"]))
            except InputError:  # raised again when the object is built
                continue
            result[group] = {key: value for key, value in node.items() if key not in strays}
    return result


def preset_keys(
    group: str,
    option: str,
    node: Mapping[str, Any],
    overrides: Sequence[str],
    folders: Collection[Path],
) -> set[str]:
    """The keys of a group's ``node`` that only a preset sets.

    They are not typed, not in the file of the chosen option, and not common to all options.
    """
    keys = [override_key(each).split(".") for each in overrides]
    typed = {key[1] for key in keys if len(key) > 1 and key[0] == group}
    own = option_values(group, option, folders).keys()
    return node.keys() - typed - common_keys(group) - own - {"_target_"}


def option_values(group: str, option: str, folders: Collection[Path]) -> dict[str, Any]:
    """What the file of an option has, over what the files of its group have that it includes."""
    files = (folder / group / f"{option}.yaml" for folder in folders)
    file = next((path for path in files if path.is_file()), None)
    node: Any = OmegaConf.to_container(OmegaConf.load(file)) if file else {}
    own = node.get(group, node)  # below the group's name if the file is ``@package _global_``
    values: dict[str, Any] = {}
    for each in node.get("defaults", ()):
        if isinstance(each, str):
            values |= option_values(group, each, folders)
    return values | (dict(own) if isinstance(own, Mapping) else {})
