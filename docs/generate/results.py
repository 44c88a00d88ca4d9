"""The pages of results: ``scripts/results`` and ``conf/experiment`` cut to a page for each paper.

A paper's page in ``docs/papers`` includes three parts: its rows of the table of verdicts, its
section of the results, and the commands of its tables. All else is on ``results/index``.
"""

import re
from collections.abc import Iterator, Mapping
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
"""Page -> title of the paper's sections; rows of its verdicts begin with the title."""

INDEX, ARCHIVE = "results/index", "results/archive"
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def results_pages() -> Iterator[tuple[str, str]]:
    """(name below ``docs/``, content) of the results' pages and of the papers' parts."""
    measured, archived = (RESULTS / name for name in ("README.md", "archive.md"))
    texts = {ARCHIVE: archived.read_text()}
    sections = _sections(measured.read_text())
    for page, title in PAPERS.items():
        texts[f"papers/{page}"] = sections.pop(title).partition("\n")[2]
    texts[INDEX] = "".join(sections.values())
    pages = {_slug(title): page for page, text in texts.items() for title in _titles(text)}
    commands = _sections(COMMANDS.read_text())
    for page, title in PAPERS.items():
        name = f"papers/{page}"
        yield f"results/{page}.part", _linked(texts[name], name, pages)
        yield f"results/{page}_verdicts.part", _linked(_verdicts(texts[INDEX], title), name, pages)
        yield (
            f"results/{page}_commands.part",
            _linked(commands[title].partition("\n")[2], name, pages),
        )
    tree = "\n```{toctree}\n:hidden:\n\narchive\n```\n"
    yield f"{INDEX}.md", _linked(texts[INDEX], INDEX, pages) + tree
    yield f"{ARCHIVE}.md", _linked(texts[ARCHIVE], ARCHIVE, pages)


def _sections(text: str) -> dict[str, str]:
    """Title -> section from its heading of level two; the text before the first has title ""."""
    head, *rest = re.split(r"^(?=## )", text, flags=re.M)
    return {"": head} | {part.partition("\n")[0].removeprefix("## "): part for part in rest}


def _titles(text: str) -> list[str]:
    without_code = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.findall(r"^#+ (.+)$", without_code, flags=re.M)


def _slug(title: str) -> str:
    """The anchor of a heading, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _verdicts(text: str, title: str) -> str:
    """The rows of the first table that belong to the paper: from its name to the next name."""
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


def _linked(text: str, page: str, pages: Mapping[str, str]) -> str:
    """``text`` with links that hold on ``page``; a link to another file becomes its text."""

    def link(found: re.Match[str]) -> str:
        image, label, target = found.groups()
        if "://" in target:
            return found.group()
        if image:
            return f"![{label}]({_relative(page, f'../scripts/results/{target}')})"
        file, _, anchor = target.partition("#")
        if file == "archive.md" and not anchor:
            return f"[{label}]({_relative(page, ARCHIVE)}.md)"
        if anchor not in pages:
            return label
        if pages[anchor] == page:
            return f"[{label}](#{anchor})"
        return f"[{label}]({_relative(page, pages[anchor])}.md#{anchor})"

    return _LINK.sub(link, text)


def _relative(page: str, target: str) -> str:
    """The path of ``target`` seen from ``page``; both are relative to ``docs/``."""
    return "../" * len(PurePosixPath(page).parent.parts) + target
