"""The paper that an option comes from, as its YAML comment or docstring names it."""

import re

from generate.options import Option, find, options
from generate.target import explanation, module_docstring

_PAPER = re.compile(
    r"\(((?:[^()]*?, )?"  # authors
    r"(?:[A-Z][A-Za-z&]*(?: [A-Z][A-Za-z]*)? ?\d{4}|arXiv \d{4}\.\d{5}|\d{4})"  # venue and year
    r"[^()]*)\)"
)


def citation(option: Option) -> str:
    """Authors, venue and year; empty if no paper is named.

    Looked for in the comment of its file, in the docstrings of its code, in the options that it
    starts from, and in the methods that choose it.
    """
    texts = [option.summary, explanation(option), module_docstring(option)]
    for text in texts:
        if found := _PAPER.search(" ".join(text.split())):
            return found[1]
    parents = [find(option.group, base) for base in option.bases]
    return next(filter(None, map(citation, [*parents, *chosen_by(option)])), "")


def chosen_by(option: Option) -> list[Option]:
    """The methods that choose it, among the options of ``algorithm``."""
    mine = (option.group, option.name)
    is_shared = option.group in ("optimizer", "measure") or mine == ("aggregator", "uniform")
    return [] if is_shared else [each for each in options("algorithm") if mine in each.choices]


def year(option: Option) -> int | None:
    """The year of that paper."""
    source = citation(option)
    if found := re.search(r"\b((?:19|20)\d\d)\b(?!\.)", source):
        return int(found[1])
    if found := re.search(r"arXiv (\d\d)", source):
        return 2000 + int(found[1])
    return None
