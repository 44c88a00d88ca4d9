"""conf/experiment/README.md lists all that ``protocols.yaml`` takes although no paper says it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "conf" / "experiment" / "README.md"
PAPERS: dict[str, dict[str, Any]] = yaml.safe_load((HERE / "protocols.yaml").read_text())


def typed(value: Any) -> str:
    """A value as it is typed; of a class its name."""
    if isinstance(value, list):
        return f"[{','.join(map(typed, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.rpartition(".")[2] if text.startswith("fedexp.") else text


def blocks(own: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(What it is for, block)."""
    yield "all", own["study"]
    yield from own["settings"].items()
    for override, block in own["methods"].items():
        yield override.partition("=")[2], block
    for setting, methods in own["methods_on"].items():
        yield from ((f"{name.partition('=')[2]}, {setting}", own) for name, own in methods.items())


def rows(paper: str, kind: str) -> Iterator[str]:
    for scope, block in blocks(PAPERS[paper]):
        for reason, values in block.get(kind, {}).items():
            keys = ((key.removesuffix("._target_"), typed(each)) for key, each in values.items())
            taken = " ".join(f"`{key}={each}`" for key, each in keys)
            yield f"| {scope} | {taken} | {reason} |"


@pytest.mark.parametrize("kind", ["unsaid", "deviates"])
@pytest.mark.parametrize("paper", PAPERS)
def test_the_page_has_every_value_that_the_paper_does_not_give(paper: str, kind: str) -> None:
    page = PAGE.read_text()
    assert [row for row in rows(paper, kind) if row not in page] == []


def test_there_are_rows() -> None:
    assert "| all | `partition=dirichlet_recut` | " in next(rows("fedsc", "deviates"))
