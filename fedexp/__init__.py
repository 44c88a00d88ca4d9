"""fedexp: a laboratory for federated learning on non-IID data.

``fedexp.run(["algorithm=fedavg", "rounds=5"])`` runs an experiment from Python, and
``fedexp.report("multirun", baseline="algorithm=fedavg")`` compares runs.
``fedexp.load("outputs/DATE/TIME").predict(inputs)`` uses a trained model.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedexp.deployment.load import load
    from fedexp.papers.report import PaperReport
    from fedexp.runtime.result import RunResult
    from fedexp.train import run

    report = PaperReport.read

__all__ = ["RunResult", "load", "report", "run"]


def __getattr__(name: str) -> Any:
    # A module is imported when its name is used: the import of torch takes seconds, for which
    # ``fedexp --help`` should not wait.
    if name == "run":
        from fedexp.train import run

        return run
    if name == "load":
        from fedexp.deployment.load import load

        return load
    if name == "report":
        from fedexp.papers.report import PaperReport

        return PaperReport.read
    if name == "RunResult":
        from fedexp.runtime.result import RunResult

        return RunResult
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
