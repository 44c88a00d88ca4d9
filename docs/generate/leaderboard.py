"""The tables of a leaderboard, from the numbers of its runs in ``scripts/results``."""

from fedexp.reporting.leaderboard.files import read_csv
from fedexp.reporting.leaderboard.page import page
from fedexp.reporting.leaderboard.tuning import RESULTS
from generate.results import RESULTS as STORED


def leaderboard(name: str) -> str:
    """The tables of ``experiment=leaderboard/<name>``, as Markdown."""
    return page(read_csv(STORED / f"leaderboard_{name}" / RESULTS))
