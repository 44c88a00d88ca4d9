"""The pages of ``experiment=``: for each paper its tables, figures and cells."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from generate.options import CONF
from generate.text import code, escape, table
from generate.yaml_comments import read

FOLDER = CONF / "experiment"


def papers() -> list[str]:
    """The folders of the papers."""
    return sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def experiments_page() -> str:
    """The list of the papers, and the experiments outside of a paper."""
    rows = [
        (f"[`experiment={paper}/`]({paper}.md)", str(len(list((FOLDER / paper).glob("*.yaml")))))
        for paper in papers()
    ]
    own = "\n\n".join(_section(path) for path in sorted(FOLDER.glob("*.yaml")))
    names = "\n".join(f"{paper} <{paper}>" for paper in papers())
    return (
        "# `experiment=`\n\nThe cells, tables and figures of the papers, with the published "
        "numbers. A table runs all its cells, methods and seeds: "
        "`fedexp -m experiment=fednh/table1`.\n\n"
        f"{table(('paper', 'presets'), rows)}\n{own}\n\n"
        f"```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )


def paper_page(paper: str) -> str:
    """All presets of a paper, tables first."""
    files = sorted((FOLDER / paper).glob("*.yaml"), key=_tables_first)
    sections = "\n\n".join(_section(path) for path in files)
    return f"# `experiment={paper}/`\n\n{sections}\n"


def _tables_first(path: Path) -> tuple[int, int, str]:
    for place, kind in enumerate(("table", "figure")):
        if path.stem.startswith(kind):
            digits = "".join(filter(str.isdigit, path.stem.partition("_")[0]))
            return place, int(digits or 0), path.stem
    return 2, 0, path.stem


def _section(path: Path) -> str:
    name = path.relative_to(FOLDER).with_suffix("").as_posix()
    file = read(path)
    is_table = "sweeper" in file.values.get("hydra", {})
    flag = "-m " if is_table else ""
    lines = [
        f"## `{name}`",
        escape(file.header),
        f"```bash\nfedexp {flag}experiment={name}\n```",
    ]
    keys = [key for key in file.keys if key.default and not key.name.startswith("paper")]
    chosen = [_choice(entry) for entry in file.values.get("defaults", [])]
    if chosen or keys:
        rows = [(code(n), code(v), "") for n, v in chosen]
        rows += [(code(key.name), code(key.default), escape(key.meaning)) for key in keys]
        lines.append(":::{div} keys\n" + table(("key", "value", ""), rows) + ":::")
    if published := _published(file.values.get("paper", [])):
        lines.append(published)
    return "\n\n".join(lines)


def _choice(entry: Any) -> tuple[str, str]:
    if isinstance(entry, str):
        return "starts from", entry
    ((where, name),) = entry.items()
    return where.removeprefix("override ").removeprefix("/"), str(name)


def _published(rows: Sequence[dict[str, Any]]) -> str:
    """The published numbers, one row each, as they stand in the file."""
    if not rows:
        return ""
    text = "\n".join(
        yaml.safe_dump(row, default_flow_style=True, width=1000).strip() for row in rows
    )
    return f":::{{dropdown}} Published numbers\n```yaml\n{text}\n```\n:::"
