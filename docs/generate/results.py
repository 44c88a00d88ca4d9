"""The pages of results: ``scripts/results``, with a page in ``docs/papers`` for each paper.

A paper's page in ``docs/papers`` includes three parts: its rows of the table of verdicts, its
page of the results, and the commands of its tables. The other pages are in ``docs/results``.
"""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "scripts" / "results"
COMMANDS = ROOT / "conf" / "experiment" / "README.md"
PAPERS = {
    "fednh": "FedNH",
    "fedsc": "FedSC",
    "fedgela": "FedGELA",
    "fedptr": "FedPTR",
    "hics": "HiCS-FL",
}
"""Page -> name of the paper; rows of its verdicts begin with the name."""

_INDEX = "README"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def results_pages() -> Iterator[tuple[str, str]]:
    """(name below ``docs/``, content) of the results' pages and of the papers' parts."""
    texts = {path.stem: path.read_text() for path in sorted(RESULTS.glob("*.md"))}
    commands = _sections(COMMANDS.read_text())
    for paper, title in PAPERS.items():
        page = page_of_results(paper)
        own = texts.pop(paper).partition("\n")[2]
        yield f"results/{paper}.part", _linked(own, page)
        yield f"results/{paper}_verdicts.part", _linked(_verdicts(texts[_INDEX], title), page)
        yield f"results/{paper}_commands.part", _linked(commands[title].partition("\n")[2], page)
    others = "\n".join(name for name in texts if name != _INDEX)
    texts[_INDEX] += f"\n```{{toctree}}\n:hidden:\n\n{others}\n```\n"
    for name, text in texts.items():
        yield f"{page_of_results(name)}.md", _linked(text, page_of_results(name))


def page_of_results(name: str) -> str:
    """The site's page, relative to ``docs/``, of a page of the results."""
    if name == _INDEX:
        return "results/index"
    return f"papers/{name}" if name in PAPERS else f"results/{name}"


def _sections(text: str) -> dict[str, str]:
    """Title -> section from its heading of level two; the text before the first has title ""."""
    head, *rest = re.split(r"^(?=## )", text, flags=re.M)
    return {"": head} | {part.partition("\n")[0].removeprefix("## "): part for part in rest}


def _verdicts(text: str, title: str) -> str:
    """The rows of the table of verdicts that belong to the paper: from its name to the next."""
    table = re.search(r"^\| paper \|.*?(?=^\s*$)", text, flags=re.M | re.S)
    assert table is not None, "the results have no table of verdicts"
    names, rule, *rows = table.group().splitlines()
    chosen, belongs = [], False
    for row in rows:
        if not row.startswith("| |"):
            belongs = row.startswith(f"| {title},")
        if belongs:
            chosen.append(row)
    return "\n".join([names, rule, *chosen]) + "\n"


def _linked(text: str, page: str) -> str:
    """``text`` with links that hold on ``page``; a link to another file becomes its text."""

    def link(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found.group()
        if image:
            return f"![{label}]({_relative(page, f'../scripts/results/{target}')})"
        file, _, anchor = target.partition("#")
        if not (file.endswith(".md") and (RESULTS / file).exists()):
            return label
        own = _relative(page, page_of_results(file.removesuffix(".md")))
        return f"[{label}]({own}.md{'#' * bool(anchor)}{anchor})"

    return _LINK.sub(link, text)


def _relative(page: str, target: str) -> str:
    """The path of ``target`` seen from ``page``; both are relative to ``docs/``."""
    return "../" * len(PurePosixPath(page).parent.parts) + target
