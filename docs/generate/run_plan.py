"""How each option is run on digits, from ``docs/measured/plan.yaml``."""

from functools import cache
from typing import Any

import yaml

from generate.measured import FOLDER
from generate.options import Option


@cache
def _plan() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / "plan.yaml").read_text())
    return found


def reason_for_none(option: Option) -> str:
    """Why the option is not run; empty if it is."""
    reasons, name = _plan()["not_measured"], f"{option.group}/{option.name}"
    if name in _plan()["measured"]:
        return ""
    return str(reasons.get(name) or reasons.get(option.group, ""))


def faster(option: Option) -> list[str]:
    """What ``docs/observe.py`` adds to the command line of its run."""
    return list(_plan()["observe"].get(f"{option.group}/{option.name}", []))


def also(option: Option) -> list[str]:
    """The overrides of its run besides the option and its group's base."""
    return list(_plan()["also"].get(f"{option.group}/{option.name}", []))


def overrides(option: Option) -> list[str]:
    """The command line of its run, without the seed."""
    plan = _plan()
    base = plan["base"].get(option.group, plan["base"]["default"])
    chosen = [] if option.is_default_measure else [option.override]
    return [*base, *chosen, *also(option), *plan["always"]]
