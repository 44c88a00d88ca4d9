"""The verdicts that are typed beside the papers' gains follow from their intervals."""

import re
from collections.abc import Iterator

from generate.results import RESULTS, ROOT

from fedexp.reporting.interval import Interval
from fedexp.reporting.papers.verdicts import AHEAD, INSIDE, NOT_SHOWN, OUTSIDE
from tests.support.result_pages import could_show

_GAIN = re.compile(r"([+-][\d.]+) ± ([\d.]+)")
_SEEDS = {"three seeds": 3, "five of six seeds": 5}


def rows() -> Iterator[tuple[Interval, float, str]]:
    """(Our gain, the paper's gain, the verdict) of each tested row of the two tables."""
    results = (RESULTS / "README.md").read_text().partition("\n| paper |")[2].partition("\n\n")[0]
    systems = (ROOT / "README.md").read_text().partition("\n| system |")[2].partition("\n\n")[0]
    for line in results.splitlines():
        _, _, _, _, seeds, paper, ours, verdict, *_ = [*line.split("|"), *[""] * 9]
        if (found := _GAIN.search(ours)) and "not given" not in paper:
            n = 5 if "five seeds" in ours else int(seeds)
            yield Interval(float(found[1]), float(found[2]), n), float(paper), verdict
    for line in systems.splitlines():
        _, _, _, ours, paper, verdict, *_ = [*line.split("|"), *[""] * 9]
        if found := _GAIN.search(ours):
            n = next(n for words, n in _SEEDS.items() if words in ours)
            yield Interval(float(found[1]), float(found[2]), n), float(paper), verdict


def test_each_verdict_has_the_words_of_its_interval() -> None:
    found = list(rows())
    assert len(found) == 9 + 3
    for gain, paper, verdict in found:
        assert (AHEAD if gain.excludes_zero else NOT_SHOWN) in verdict
        assert (INSIDE if gain.contains(paper) else OUTSIDE) in verdict
        if not gain.excludes_zero:
            assert could_show(gain) in verdict
