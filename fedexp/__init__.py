"""fedexp: a laboratory for federated learning on non-IID data.

``fedexp.run(["algorithm=fedavg", "rounds=5"])`` runs an experiment from Python, and
``fedexp.report("multirun", baseline="algorithm=fedavg")`` compares runs.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedexp.papers.report import PaperReport
    from fedexp.runtime.result import RunResult
    from fedexp.train import run

    report = PaperReport.read

__all__ = ["RunResult", "report", "run"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: torch takes seconds, and ``fedexp --help`` should not wait for it.
    if name == "run":
        from fedexp.train import run

        return run
    if name == "report":
        from fedexp.papers.report import PaperReport

        return PaperReport.read
    if name == "RunResult":
        from fedexp.runtime.result import RunResult

        return RunResult
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
