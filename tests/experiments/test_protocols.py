"""Every preset of a paper against the paper's values in ``protocols.yaml``."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.federations import compose

from fedexp.cli.command import config_folder
from fedexp.config.schema import Config
from fedexp.reporting.papers.published import checked_rows

Values = dict[str, Any]
Block = dict[str, dict[str, Values]]

CONF = Path(config_folder())
PAPERS: dict[str, dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "protocols.yaml").read_text()
)
CELLS = [(paper, cell) for paper, own in PAPERS.items() for cell in own["cells"]]


def merged(blocks: Iterable[Block]) -> Values:
    """What a preset should have; another ``_target_`` replaces a group's earlier values."""
    found: Values = {}
    for block in blocks:
        own = {
            key: value
            for kind in ("says", "unsaid", "deviates")
            for values in block.get(kind, {}).values()
            for key, value in values.items()
        }
        replaced = tuple(f"{key.partition('.')[0]}." for key in own if key.endswith("._target_"))
        found = {key: value for key, value in found.items() if not key.startswith(replaced)} | own
    return found


def blocks_of(paper: str, cell: str) -> list[Block]:
    own = PAPERS[paper]
    return [own["study"], *(own["settings"][name] for name in own["cells"][cell])]


def expected(paper: str, cell: str, method: str | None) -> Values:
    own = PAPERS[paper]
    blocks = blocks_of(paper, cell)
    if method is not None:
        on = (own["methods_on"].get(setting, {}).get(method, {}) for setting in own["cells"][cell])
        blocks += [own["methods"].get(method, {}), *on]
    return merged(blocks)


def composed(paper: str, cell: str, method: str | None) -> Config:
    """Models are composed with the method of the cells, too."""
    own = PAPERS[paper]
    chosen = [method, own["check_with"]] if method and method.startswith("model=") else [method]
    return compose(f"experiment={paper}/{cell}", *filter(None, chosen))


def value(config: Config, key: str) -> Any:
    """The value at a dotted key; None where an option has no such key."""
    found: Any = config.model_dump(mode="json")
    for step in key.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def differences(config: Config, wanted: Values) -> dict[str, tuple[Any, Any]]:
    """Key -> (found, wanted), of those that differ."""
    found = {key: value(config, key) for key in wanted}
    return {key: (found[key], want) for key, want in wanted.items() if found[key] != want}


def methods() -> Iterator[tuple[str, str, str]]:
    """(paper, cell, override): each method on the first cell, and of each setting that it names."""
    for paper, own in PAPERS.items():
        first = next(iter(own["cells"]))
        yield from ((paper, first, method) for method in own["methods"])
        for setting, blocks in own["methods_on"].items():
            cell = next(name for name, settings in own["cells"].items() if setting in settings)
            yield from ((paper, cell, method) for method in blocks)


@pytest.mark.parametrize(("paper", "cell"), CELLS)
def test_a_cell_is_the_papers(paper: str, cell: str) -> None:
    method = PAPERS[paper]["check_with"]
    config = composed(paper, cell, method)
    assert differences(config, expected(paper, cell, method)) == {}
    assert all(row.values for row in checked_rows(config.paper))


@pytest.mark.parametrize(("paper", "cell", "method"), methods())
def test_a_method_is_the_papers(paper: str, cell: str, method: str) -> None:
    config = composed(paper, cell, method)
    assert differences(config, expected(paper, cell, method)) == {}


@pytest.mark.parametrize(
    ("paper", "cell", "method"),
    [
        (paper, cell, method)
        for paper, own in PAPERS.items()
        for cell, guests in own["guests"].items()
        for method in guests
    ],
)
def test_a_method_of_another_paper_is_compared_alike(paper: str, cell: str, method: str) -> None:
    wanted = merged([PAPERS[paper]["guests"][cell][method]])
    assert differences(composed(paper, cell, method), wanted) == {}


NO_PAPER = ("leaderboard", "factorial")


def test_every_preset_of_a_paper_is_a_cell_or_a_table() -> None:
    presets = {
        (path.parent.name, path.stem)
        for path in (CONF / "experiment").glob("*/*.yaml")
        if "sweeper:" not in path.read_text() and path.parent.name not in NO_PAPER
    }
    assert presets - {("fednh", "spiral")} == set(CELLS)


def typed(name: str) -> Iterator[str]:
    """The keys that a preset's file and the files that it extends set; a group with its option."""
    content = yaml.safe_load((CONF / f"{name}.yaml").read_text())
    for entry in content.pop("defaults", []):
        if isinstance(entry, str):
            folder = "" if entry.startswith("/") else f"{name.rpartition('/')[0]}/"
            yield from typed(f"{folder}{entry.lstrip('/')}")
            continue
        ((option, chosen),) = entry.items()
        group = option.removeprefix("override /")
        if group == "protocol":
            yield from typed(f"{group}/{chosen}")
        elif group != "algorithm":
            yield f"{group}."
    content.pop("paper", None)
    yield from flat(content)


def flat(node: Values, prefix: str = "") -> Iterator[str]:
    """The dotted keys of all values."""
    for key, each in node.items():
        if isinstance(each, dict):
            yield from flat(each, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


@pytest.mark.parametrize(("paper", "cell"), CELLS)
def test_a_preset_sets_nothing_silently(paper: str, cell: str) -> None:
    """Each key of a preset, and each option that it chooses, has its place or its reason."""
    known = expected(paper, cell, PAPERS[paper]["check_with"])
    config = compose(f"experiment={paper}/{cell}")
    for key in set(typed(f"experiment/{paper}/{cell}")):
        if key.endswith("."):
            assert any(each.startswith(key) for each in known), key
        elif value(config, key) is not None:
            assert key in known


def all_blocks(paper: str) -> Iterator[tuple[list[Block], Block]]:
    """Each block after those that it is read after."""
    own = PAPERS[paper]
    yield [], own["study"]
    for block in own["settings"].values():
        yield [own["study"]], block
    for block in own["methods"].values():
        yield [own["study"]], block
    for setting, blocks in own["methods_on"].items():
        for method, block in blocks.items():
            earlier = [own["study"], own["settings"][setting], own["methods"].get(method, {})]
            yield earlier, block


@pytest.mark.parametrize("paper", PAPERS)
def test_what_deviates_is_said_and_differs(paper: str) -> None:
    for earlier, block in all_blocks(paper):
        assert set(block) <= {"says", "unsaid", "deviates"}
        said = merged([{"says": each.get("says", {})} for each in (*earlier, block)])
        for reason, values in block.get("deviates", {}).items():
            assert reason
            for key, found in values.items():
                assert key in said, (paper, key)
                assert said[key] != found, (paper, key)


@pytest.mark.parametrize("paper", PAPERS)
def test_what_is_unsaid_is_nowhere_said(paper: str) -> None:
    for _, block in all_blocks(paper):
        said = {key for values in block.get("says", {}).values() for key in values}
        unsaid = {key for values in block.get("unsaid", {}).values() for key in values}
        assert not said & unsaid, (paper, said & unsaid)


def test_a_head_that_is_chosen_or_set_wins_over_the_papers() -> None:
    cell = ["experiment=fednh/cifar10_dir03", "algorithm=fedavg"]
    assert value(compose(*cell, "head=cosine"), "head.bias") is None
    assert value(compose(*cell, "head.bias=true"), "head.bias") is True
