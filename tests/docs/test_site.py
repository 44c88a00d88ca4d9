"""The built site, and the examples on the pages that people write."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from runpy import run_path

import hydra
import pytest
from docutils.utils.smartquotes import educate_tokens
from omegaconf import OmegaConf
from support.pages import blocks

from fedexp.cli.command import config_folder
from fedexp.cli.hydra_api import initialize
from fedexp.config.schema import validate

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if not {"_build", "options", "results"} & set(path.relative_to(DOCS).parts)
]


def commands(page: Path) -> list[list[str]]:
    """The overrides of each ``fedexp`` command on a page that one can paste."""
    text = "".join(re.findall(r"^```bash\n(.*?)^```$", page.read_text(), flags=re.M | re.S))
    words = [shlex.split(line, comments=True) for line in text.replace("\\\n", " ").splitlines()]
    return [
        each[1:]
        for each in words
        if each[:1] == ["fedexp"] and not any(word.startswith("-") for word in each[1:])
    ]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_command_on_a_page_is_accepted(page: Path) -> None:
    for overrides in commands(page):
        with initialize(config_folder()):
            validate(OmegaConf.to_container(hydra.compose("config", overrides), resolve=True))


def test_there_are_commands_on_the_pages() -> None:
    assert ["algorithm=fedavg", "loss=moon"] in commands(DOCS / "index.md")


def test_a_page_with_a_runs_output_says_where_it_is_the_same() -> None:
    """Four decimals of a table that a run or a report printed."""
    pages = [page for page in WRITTEN if re.search(r"\d\.\d{4}", "".join(blocks(page, "text")))]
    assert {"first_table", "ablate", "your_data"} <= {page.stem for page in pages}
    without = [p.stem for p in pages if "randomness.md#what-is-the-same-where" not in p.read_text()]
    assert without == []


def test_the_signs_of_a_leaderboard_are_no_dashes() -> None:
    action = run_path(str(DOCS / "conf.py"))["smartquotes_action"]
    signs = "0.934 ± 0.006 --, 0.924 ± 0.009 ---"
    assert "".join(educate_tokens([("plain", signs)], attr=action)) == signs


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_its_examples_hold(tmp_path: Path) -> None:
    """Links between pages are checked by the build: one that leads nowhere is a warning."""
    for builder in ("html", "doctest"):
        sphinx = [sys.executable, "-m", "sphinx", "-W", "-q", "-d", str(tmp_path / "doctrees")]
        subprocess.run(
            [*sphinx, "-b", builder, str(DOCS), str(tmp_path / builder)], cwd=ROOT, check=True
        )
    pages = {path.relative_to(tmp_path / "html") for path in (tmp_path / "html").rglob("*.html")}
    assert {Path("index.html"), Path("options/gallery.html"), Path("numbers/index.html")} <= pages
    assert len(pages) > 200
    outside = [
        path
        for path in (tmp_path / "html").rglob("*.html")
        if re.search(r'<(?:script|link|img)[^>]+(?:src|href)="https?:', path.read_text())
    ]
    assert outside == []  # a reader without network sees the whole page
    for page in ("loss/focal", "head/etf", "regularizer/proximal", "aggregator/q_fair"):
        assert "<math" in (tmp_path / f"html/options/{page}.html").read_text()
