"""The types of arguments as written in the source files are those that Python finds."""

import inspect
import re
import typing
from pathlib import Path

import pytest

from fedexp.cli.command import config_folder
from fedexp.config.build import locate
from fedexp.config.written_types import check_written, written_types
from fedexp.errors import InputError

OPTIONS = "".join(path.read_text() for path in Path(config_folder()).rglob("*.yaml"))
TARGETS = sorted(set(re.findall(r"_target_: *(fedexp\.\S+)", OPTIONS)))


def test_the_written_types_of_all_options() -> None:
    read = known = 0
    for name in TARGETS:
        target = locate("target", name)
        source = target.__init__ if inspect.isclass(target) else target
        hints = typing.get_type_hints(source, include_extras=True)
        written = written_types(name)
        read += len(written)
        known += len(hints.keys() - {"return"})
        for argument, kind in written.items():
            assert repr(kind) == repr(hints[argument]), (name, argument)
    assert len(TARGETS) > 180
    assert read > 0.9 * known


@pytest.mark.parametrize("target", ["torch.optim.SGD", "fedexp.none.None", "name", "None"])
def test_other_targets_are_left_to_the_import(target: str) -> None:
    assert written_types(target) == {}


def test_a_wrong_value_is_named() -> None:
    node = {"_target_": "fedexp.measures.prototypes.Prototypes", "every": "x", "unknown": 1}
    with pytest.raises(
        InputError, match=r"^measure\.prototypes\.every=x: should be a valid integer"
    ):
        check_written({"rounds": 3, "measure": {"prototypes": node, "best": None}})
