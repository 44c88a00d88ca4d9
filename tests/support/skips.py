"""Which tests may skip: with ``CI`` set, a skip for another reason fails the run.

``conftest.py`` takes the two hooks from here. Without ``CI`` they only name the other skips.
"""

import os

import pytest

ALLOWED = {
    "FEDEXP_CIFAR10_IMAGES does not name the CIFAR-10 image folder",
    "FEDEXP_WANDB_SERVER does not name a W&B server",
    "needs a GPU",
    "there is a GPU",
    "needs node",
    "needs a C++ compiler and ninja",
    "only root can mount a disk",
    "only root can mount a file system",
    "SLURM and munge are not installed",
    "the extra ray is not installed",  # it has no files for some systems, so [dev] leaves it out
}
"""Reasons that a complete development environment cannot help."""


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in CI that has another skip."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.exitstatus == 0 and os.environ.get("CI") and reporter and others(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name every other skip."""
    if found := others(terminalreporter):
        terminalreporter.section("skips that tests/support/skips.py does not allow")
        for each in found:
            terminalreporter.line(each)


def others(reporter: pytest.TerminalReporter) -> list[str]:
    """The skips whose reason is not allowed; of xdist's workers the reporter has them all."""
    found = set()
    for report in reporter.stats.get("skipped", ()):
        path, line, reason = report.longrepr
        if reason.removeprefix("Skipped: ") not in ALLOWED:
            found.add(f"{path}:{line}: {reason}")
    return sorted(found)
