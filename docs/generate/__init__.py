"""A Sphinx extension that writes the pages made from configs, code and stored runs.

They lie in ``docs/options``, ``docs/results`` and ``docs/start/lessons``, which are not committed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from fedexp.reporting.leaderboard.files import read_csv
from fedexp.reporting.leaderboard.page import page
from fedexp.reporting.leaderboard.tuning import RESULTS as TABLE
from generate.experiments import experiments_page, paper_page, papers
from generate.gallery import gallery
from generate.group_page import group_page, groups_page
from generate.option_page import option_page
from generate.options import GROUPS, all_options
from generate.peers import methods_table, projects
from generate.results import RESULTS, results_pages
from generate.which_method import which_method

DOCS = Path(__file__).parents[1]
NOTEBOOKS = DOCS.parent / "notebooks"


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the pages before Sphinx looks for its sources."""
    app.connect("config-inited", lambda app, config: write_pages(DOCS))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def pages() -> Iterator[tuple[str, str]]:
    """(name below ``docs/``, content) of every generated page."""
    yield "options/index.md", groups_page()
    yield "options/gallery.md", gallery()
    for group in GROUPS:
        yield f"options/{group}/index.md", group_page(group)
    for option in all_options():
        yield f"{option.page}.md", option_page(option)
    yield "options/experiment/index.md", experiments_page()
    for paper in papers():
        yield f"options/experiment/{paper}.md", paper_page(paper)
    yield from results_pages()
    for name in ("digits", "digits_four", "cifar10"):
        rows = read_csv(RESULTS / f"leaderboard_{name}" / TABLE)
        yield f"results/leaderboard_{name}.part", page(rows)
    yield "results/which_method.part", which_method("digits")
    for name in projects():
        yield f"results/methods_{name}.part", methods_table(name)


def write_pages(folder: Path) -> None:
    """Write all pages below ``folder``; a page that has not changed keeps its date."""
    contents = dict(pages())
    lessons = {f"start/lessons/{path.name}": path.read_text() for path in NOTEBOOKS.glob("*.ipynb")}
    for name, content in {**contents, **lessons}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
    for room in ("options", "results", "start/lessons"):
        for path in (folder / room).rglob("*.*"):
            if path.relative_to(folder).as_posix() not in {*contents, *lessons}:
                path.unlink()
