"""The names that other projects give to methods: what chooses them here, or why they are not built.

``docs/coming_from/methods.yaml`` has the methods; an installed package holds a copy.
"""

from pathlib import Path

import yaml

_PACKAGE = Path(__file__).resolve().parents[1]
_FILES = (_PACKAGE / "coming_from.yaml", _PACKAGE.parent / "docs/coming_from/methods.yaml")


def plain(name: str) -> str:
    """The name in small letters, without ``_`` and ``-``, which projects write differently."""
    return name.lower().replace("_", "").replace("-", "")


def known_elsewhere(name: str) -> str:
    """Advice about a method that another project has under this name; empty if none has it."""
    file = next((each for each in _FILES if each.is_file()), None)
    projects = yaml.safe_load(file.read_text(encoding="utf-8")) if file else {}
    methods = (method for project in projects.values() for method in project["methods"])
    found = next((each for each in methods if plain(each["name"]) == plain(name)), None)
    if found is None:
        return ""
    if "ours" in found:
        return f"here it is {found['ours']}"
    why = found["missing"].removesuffix(".")
    return f"it is not built: {why[0].lower()}{why[1:]}"
