"""The code on the Markdown pages, and its files."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.M | re.S)


def anchor_of(heading: str) -> str:
    """GitHub's anchor of a heading."""
    return re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")


def paste(pages: Iterable[Path], folder: Path) -> None:
    """Write the files on the pages below ``folder``: the first comment of each is its name."""
    for text in [t for page in pages for k in ("python", "yaml") for t in blocks(page, k)]:
        named = re.match(r"(?:# @package .*\n)?# (\S+\.(?:py|yaml))\n", text)
        if named:
            (folder / named[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / named[1]).write_text(text)


def forget(*modules: str) -> None:
    """Let Python import these modules anew, from another folder."""
    for name in [each for each in sys.modules if each.partition(".")[0] in modules]:
        del sys.modules[name]
