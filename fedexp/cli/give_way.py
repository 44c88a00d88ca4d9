"""What a preset sets for an option gives way when the command line chooses another option.

``algorithm=scaffold`` may set ``optimizer.momentum``; with ``optimizer=adam`` on the command line
there is no such key, and the preset's value is dropped. A key that the command line itself sets
never gives way, so a mistyped one is still an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedexp.config.build import argument_names, locate
from fedexp.config.schema import common_keys
from fedexp.errors import InputError


def give_way(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The config without the keys that only presets set and the chosen options do not have.

    Args:
        values: the composed config as nested dictionaries.
        overrides: what the command line changed, for example ["optimizer=adam", "rounds=5"].
    """
    typed = [override.lstrip("+~").partition("=")[0] for override in overrides]
    result = dict(values)
    for group in typed:
        node = values.get(group)
        if isinstance(node, Mapping) and "_target_" in node:
            result[group] = _without_strays(group, node, typed)
    return result


def _without_strays(group: str, node: Mapping[str, Any], typed: Iterable[str]) -> dict[str, Any]:
    try:
        known = argument_names(locate(group, node["_target_"])) | common_keys(group)
    except InputError:  # the check of the whole config says why
        return dict(node)
    kept = {key.removeprefix(f"{group}.").partition(".")[0] for key in typed}
    return {key: value for key, value in node.items() if key in known or key in kept}
