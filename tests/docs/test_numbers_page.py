"""The pages of metrics: no metric without a formula."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from generate.measured import FOLDER

ROOT = Path(__file__).parents[2]
ROOMS = (
    *("measures", "heads", "losses", "regularizers", "gradients", "personalization", "samplers"),
    *("aggregators", "faults", "engines", "coordination"),
)
"""Folders of the package whose code names metrics and figures."""

NOT_LOGGED = ("gradient/", "start/", "figures/")
"""Beginnings of names that parts use among themselves."""

PAGES = ROOT / "docs" / "numbers"
_NAME = r"[a-z_]+/[\w<>]+(?:/<\w+>)?"


def documented() -> list[str]:
    """The names on the pages; ``<kind>`` stands for several words."""
    text = "".join(page.read_text() for page in PAGES.glob("*.md"))
    return re.findall(rf"`({_NAME})`", text)


def pattern(name: str) -> re.Pattern[str]:
    """What a name with placeholders stands for."""
    return re.compile(re.sub(r"<\w+>", ".+", name))


def in_code() -> Iterator[str]:
    """The names that the code writes; an f-string's values become ``<x>``."""
    for room in ROOMS:
        for path in (ROOT / "fedexp" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    text = "".join(
                        str(each.value) if isinstance(each, ast.Constant) else "<x>"
                        for each in node.values
                    )
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    text = node.value.replace("{}", "<x>")  # a template for str.format
                else:
                    continue
                text += "<x>" if text.endswith("_") else ""  # the beginning of an f-string
                if re.fullmatch(_NAME, text) and not text.startswith(NOT_LOGGED):
                    yield text


def test_uniform_is_said_to_count_samples_and_not_classes() -> None:
    page = (PAGES / "personal.md").read_text()
    assert "each sample counted alike" in page
    assert "each class counted alike" not in page


def test_every_name_in_the_code_is_on_the_page() -> None:
    page, found = documented(), set(in_code())
    assert {"global/accuracy", "forgetting/mean", "privacy/epsilon", "heatmap/partition"} <= found
    missing = [
        name
        for name in found
        if not any(pattern(each).fullmatch(name) or pattern(name).fullmatch(each) for each in page)
    ]
    assert missing == []


def test_every_metric_of_a_stored_run_is_on_the_page() -> None:
    runs = [
        run
        for path in FOLDER.rglob("*.json")
        for run in json.loads(path.read_text()).get("runs", [])
    ]
    names = {name for run in runs for name in run["metrics"]}
    patterns = list(map(pattern, documented()))
    assert [name for name in names if not any(each.fullmatch(name) for each in patterns)] == []


def test_every_metric_on_the_page_is_in_the_code() -> None:
    code = [pattern(name) for name in in_code()] + [re.compile("rounds_to/.+")]
    own = "".join(page.read_text() for page in PAGES.glob("*.md") if page.stem != "elsewhere")
    names = set(re.findall(rf"^\| `({_NAME})`", own, flags=re.M))
    unknown = [name for name in names if not any(each.fullmatch(name) for each in code)]
    assert set(unknown) <= {"global/per_class_accuracy"}  # the tracker's for Measured.per_class


PAPERS = {"fednh": "FedNH", "fedsc": "FedSC", "fedgela": "FedGELA", "fedptr": "FedPTR"}


@pytest.mark.parametrize("paper", PAPERS)
def test_the_papers_numbers_are_those_of_their_presets(paper: str) -> None:
    page = (PAGES / "index.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith(f"| {PAPERS[paper]} |")]
    presets = (ROOT / "conf/experiment" / paper).glob("*.yaml")
    loaded = [yaml.safe_load(preset.read_text()) or {} for preset in presets]
    published = [row for preset in loaded for row in preset.get("paper") or ()]
    accuracies = {
        (row["metric"], row["statistic"])
        for row in published
        if row["metric"].startswith(("global/accuracy", "personal/accuracy"))
    }
    metrics = set(re.findall(r"`([a-z]+/\w+)`", "".join(rows)))
    statistics = {name for name in ("final", "best", "mean_last5") if f"`{name}`" in "".join(rows)}
    assert metrics == {metric for metric, _ in accuracies}
    assert statistics <= {statistic for _, statistic in accuracies}
    assert statistics
