"""fedexp: a laboratory for federated learning on non-IID data.

``fedexp.run(["algorithm=fedavg", "rounds=5"])`` runs an experiment from Python, and
``fedexp.report("multirun", baseline="algorithm=fedavg")`` compares runs.
``fedexp.load("outputs/DATE/TIME").predict(inputs)`` uses a trained model.
"""

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedexp.deployment.load import load
    from fedexp.reporting.report import Report
    from fedexp.runtime.result import RunResult
    from fedexp.train import run

    report = Report.read
    __version__: str

__all__ = ["RunResult", "__version__", "load", "report", "run"]


_PLACES = {
    "run": ("fedexp.train", "run"),
    "load": ("fedexp.deployment.load", "load"),
    "report": ("fedexp.reporting.report", "Report.read"),
    "RunResult": ("fedexp.runtime.result", "RunResult"),
}
"""Public name -> its module, and its name there."""


def __getattr__(name: str) -> Any:
    # A module is imported when its name is used: the import of torch takes seconds, for which
    # ``fedexp --help`` should not wait.
    if name == "__version__":
        from fedexp.version import code_version

        return code_version()
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own_name = _PLACES[name]
    return attrgetter(own_name)(import_module(module))
