"""The paper that an option comes from, as its YAML comment or docstring names it."""

import re

from generate.options import GROUPS, Option, find, options
from generate.target import explanation, module_docstring

_PAPER = re.compile(
    r"\(((?:[^()]*?, )?"  # authors
    r"(?:[A-Z][A-Za-z&]*(?: [A-Z][A-Za-z]*)? ?\d{4}|arXiv \d{4}\.\d{5}|\d{4})"  # venue and year
    r"[^()]*)\)"
)


def citation(option: Option) -> str:
    """Authors, venue and year; empty if no paper is named.

    Looked for at the option, at those that it starts from, at the methods that choose it, and at
    the options that it chooses.
    """
    bases = [find(option.group, base) for base in option.bases]
    chosen = [find(*each) for each in option.choices if each[0] in GROUPS]
    related = [option, *bases, *chosen_by(option), *chosen]
    return next(filter(None, map(_named_by, related)), "")


def _named_by(option: Option) -> str:
    """The paper in the comment of its file or in the docstrings of its code."""
    texts = (option.summary, explanation(option), module_docstring(option))
    found = (_PAPER.search(" ".join(text.split())) for text in texts)
    return next((each[1] for each in found if each), "")


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


def venue(option: Option) -> str:
    """Where that paper appeared, such as ``ICML``; empty if the citation has only a year."""
    parts = citation(option).split(", ")
    dated = (each for each in parts if re.search(r"\b(19|20)\d\d$|^arXiv \d", each))
    return re.sub(r" ?\d[\d.]*$", "", next(dated, ""))
