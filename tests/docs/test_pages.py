"""The generated pages: no option without a page, and what a page has."""

import os
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from generate import NOTEBOOKS, pages
from generate.curve import svg
from generate.links import on_site
from generate.options import GROUPS, Option, all_options, options
from generate.text import escape, prose
from generate.yaml_comments import read

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
NOT_CHOSEN = ("method/", "hydra/help/", "hydra/job_logging/")
"""Folders of the config tree from which no user chooses."""


@cache
def site() -> dict[str, str]:
    """Name -> content of every generated page."""
    return dict(pages())


def names() -> list[str]:
    """Every option and experiment, such as ``head/etf``."""
    found = (path.relative_to(CONF).with_suffix("").as_posix() for path in CONF.rglob("*/*.yaml"))
    return [each for each in found if not each.startswith(NOT_CHOSEN)]


def test_every_option_has_a_page() -> None:
    wanted = {f"options/{each}.md" for each in names() if not each.startswith("experiment/")}
    assert len(wanted) > 150
    assert wanted <= site().keys()


def test_every_experiment_has_a_section() -> None:
    wanted = {each.removeprefix("experiment/") for each in names() if each.startswith("experiment")}
    sections = re.findall(r"^## `(\S+)`$", "\n".join(site().values()), flags=re.M)
    assert len(wanted) > 100
    assert wanted <= set(sections)


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of the keys that hold no further keys."""
    for key, value in values.items():
        if key in ("_target_", "defaults", "hydra"):
            continue
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


@pytest.mark.parametrize("group", GROUPS)
def test_a_page_has_every_key(group: str) -> None:
    for option in options(group):
        text = (CONF / group / f"{option.name}.yaml").read_text()
        is_global = text.startswith("# @package _global_")
        room = "" if is_global else f"{group.replace('/', '.')}."
        for key in leaves(yaml.safe_load(text) or {}):
            assert f"| `{room}{key}` | `" in site()[f"{option.page}.md"], option


def test_a_key_has_its_default_and_its_meaning_inherited_too() -> None:
    page = site()["options/sampler/hics_oracle.md"]
    assert "| `sampler.clusters` | `5` | M, number of clusters |" in page
    assert "| `sampler.lam` | `0.1` | weight of the angle in the distance" in page


def test_a_page_names_paper_code_and_methods() -> None:
    page = site()["options/loss/moon.md"]
    assert "| Source | Li et al., CVPR 2021 |" in page
    assert "`fedexp/losses/moon.py`" in page
    assert "(/options/algorithm/moon.md)" in page


def test_a_conflict_is_on_both_pages() -> None:
    one, other = "regularizer/trajectory", "head/retrained"
    assert f"(/options/{other}.md)" in site()[f"options/{one}.md"]
    assert f"(/options/{one}.md)" in site()[f"options/{other}.md"]


def test_a_warning_names_options_whose_hooks_give_them_the_property() -> None:
    lines = site()["options/sampler/clustered.md"].splitlines()
    warned = [line for line in lines if line.startswith("* Warns of what")]
    assert any("`personalization=ifca`" in line for line in warned)


def test_a_comment_belongs_to_the_key_beside_it_and_to_the_key_below(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        "# A head.\n# It turns.\n_target_: a.B\n# Only for b.\nb: [1, 2]  # a list\n"
        "c:\n  d: 1e-3  # small\n"
    )
    file = read(tmp_path / "one.yaml")
    assert file.header == "A head. It turns."
    assert [(key.name, key.default, key.meaning) for key in file.keys] == [
        ("b", "[1, 2]", "a list. Only for b."),
        ("c.d", "1e-3", "small"),
    ]


def test_plain_text_stays_plain() -> None:
    assert escape("my_w * ||x|| in `head=etf` <b>") == r"my\_w \* \|\|x\|\| in `head=etf` \<b\>"
    assert prose("") == ""
    assert prose("One\nline.\n\nTwo.\n\nArgs:\n    x: no") == "One line.\n\nTwo."


def test_a_curve_ends_at_its_last_value() -> None:
    drawn = svg({"own": [(1, 0.0), (2, 1.0)]}, "accuracy")
    assert 'points="252.0,186.0 470.0,10.0"' in drawn


def test_no_option_is_listed_twice() -> None:
    found = [(each.group, each.name) for each in all_options()]
    assert len(found) == len(set(found))
    assert all(isinstance(each, Option) for each in all_options())


def test_the_table_of_methods_has_each_methods_optimizer() -> None:
    cells = {
        row.split("]")[0].strip("| ["): [cell.strip() for cell in row.split(" | ")]
        for row in site()["options/gallery.md"].partition("## What they need")[0].splitlines()
        if row.startswith("| [")
    }
    assert cells.keys() == {each.name for each in options("algorithm")}
    assert {cells[name][2] for name in ("fedavg", "fedala", "feddyn_paper")} == {"sgd"}
    assert {cells[name][2] for name in ("scaffold", "feddyn", "qfedavg")} == {"sgd_plain"}


WRITTEN = [
    path
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if not {"_build", "options", "results"} & set(path.relative_to(ROOT / "docs").parts)
]


def test_links_of_written_pages_lead_to_pages_of_the_site() -> None:
    lessons = {f"start/lessons/{path.name}" for path in NOTEBOOKS.glob("*.ipynb")}
    there = {*site(), *lessons, *(p.relative_to(ROOT / "docs").as_posix() for p in WRITTEN)}
    missing = []
    for path in WRITTEN:
        page = path.relative_to(ROOT / "docs").with_suffix("")
        text = on_site(path.read_text(), page.as_posix())
        for target in re.findall(r"(?<!!)\[[^\]]*\]\((?!\w+:)([^)#\s]+)", text):
            place = os.path.normpath(page.parent / target).removeprefix("/")
            missing += [] if place in there else [f"{page}: {target}"]
    assert missing == []


def test_a_link_to_a_file_of_the_repository_has_its_page() -> None:
    text = "[a](../../conf/loss/moon.yaml) [b](../../conf/loss) [c](../../conf) [d](x.md#e)"
    assert on_site(text, "start/page") == (
        "[a](/options/loss/moon.md) [b](/options/loss/index.md) [c](/options/index.md) [d](x.md#e)"
    )
    more = "[a](../notebooks/02_spiral.ipynb) [b](../scripts/results/hics.md) ![c](../conf/a.yaml)"
    assert on_site(more, "page") == (
        "[a](/start/lessons/02_spiral.ipynb) [b](/papers/hics.md) ![c](../conf/a.yaml)"
    )
