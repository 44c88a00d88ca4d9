"""Command lines that give the same config, found without composing it, which takes long."""

from collections.abc import Iterable, Mapping

from generate.options import CONF, find
from generate.yaml_comments import read


def _defaults() -> set[tuple[str, str]]:
    """(group, option) of the main config's defaults."""
    entries = read(CONF / "config.yaml").values["defaults"]
    assert isinstance(entries, list)
    pairs = (pair for each in entries if isinstance(each, dict) for pair in each.items())
    return {(group, str(name)) for group, name in pairs if group != "algorithm"}


_DEFAULTS = _defaults()


def spelled_out(overrides: Iterable[str]) -> frozenset[tuple[str, str]]:
    """The keys and values without defaults, and with a preset's choices in place of its name.

    Overrides that are equal here give the same config. A preset that also sets values keeps its
    name, so some overrides that give the same config are not equal here.
    """
    typed = dict[str, str](each.split("=", 1) for each in overrides)
    preset = find("algorithm", typed.setdefault("algorithm", "fedavg"))
    if not preset.keys:
        del typed["algorithm"]
        typed = dict(preset.choices) | typed
    return frozenset(typed.items() - _DEFAULTS)


def without_twins(cases: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Name -> overrides, of the first case with each config."""
    first: dict[frozenset[tuple[str, str]], str] = {}
    for name, overrides in cases.items():
        first.setdefault(spelled_out(overrides), name)
    return {name: cases[name] for name in first.values()}
