"""A Sphinx extension for the links of the written pages, which lead to files of the repository.

There a link to an option leads to its YAML file, and a link to a lesson to the notebook. On the
site it leads to the option's page, and to the lesson's page.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from sphinx.application import Sphinx

from generate.results import page_of_results

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)((?:#[^)\s]*)?)\)")


def setup(app: Sphinx) -> dict[str, Any]:
    """Change the links of each page when Sphinx reads it."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = on_site(source[0], page)


def on_site(text: str, page: str) -> str:
    """The text of a page with the site's links; ``page`` is its name below ``docs/``."""

    def link(found: re.Match[str]) -> str:
        label, target, anchor = found.groups()
        here = (PurePosixPath("docs") / page).parent
        place = PurePosixPath(os.path.normpath(here / target))
        own = site_page(place)
        return found.group() if own is None else f"[{label}](/{own}{anchor})"

    return _LINK.sub(link, text)


def site_page(place: PurePosixPath) -> str | None:
    """The site's page below ``docs/`` about a file or folder of the repository, if there is one."""
    room, *names = place.parts
    if room == "notebooks" and names:
        return f"start/lessons/{'/'.join(names)}"
    if place.parts[:2] == ("scripts", "results") and place.suffix == ".md":
        return f"{page_of_results(place.stem)}.md"
    if room != "conf":
        return None
    if place.suffix == ".yaml":
        return f"options/{'/'.join(names)}".removesuffix(".yaml") + ".md"
    if len(names) == 2 and names[0] == "experiment":  # a paper
        return f"options/experiment/{names[1]}.md"
    return "/".join(["options", *names, "index.md"])
