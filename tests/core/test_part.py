import importlib
import inspect
from pathlib import Path

import fedexp
from fedexp.config.compatibility.traits import READS_ROUNDS
from fedexp.core.part import Part, has_server_half


class Counting(Part):
    saved = ("releases",)


def test_a_part_whose_server_keeps_a_state_has_a_server_half() -> None:
    assert has_server_half(Counting())
    assert not has_server_half(Part())


def test_a_part_that_depends_on_the_number_of_rounds_declares_it() -> None:
    package = Path(inspect.getfile(fedexp)).parent
    files = {each: each.read_text() for each in package.glob("*/*.py")}
    found = {}
    for path in (each for each, text in files.items() if "setting.rounds" in text):
        module = importlib.import_module(f"fedexp.{path.parent.name}.{path.stem}")
        own = [
            each
            for each in vars(module).values()
            if getattr(each, "__module__", "") == module.__name__
        ]
        parts = [each for each in own if inspect.isclass(each) and issubclass(each, Part)]
        found |= {each.__name__: READS_ROUNDS in each.traits for each in parts}
    assert found.pop("CrossRound") is False  # it only checks that its warm-up ends
    assert len(found) == 7
    assert all(found.values()), found
