"""Makes the import of Lightning quicker: of torchmetrics it needs two classes.

``import lightning`` imports torchmetrics, and its ``__init__`` all metrics, for text, images and
sound, with torchvision, transformers and scipy.signal. That takes as long as importing PyTorch.
Here the ``__init__`` runs when something else of torchmetrics is asked for, so that other code
finds it as it is: ``torchmetrics.Accuracy``, ``from torchmetrics.classification import ...``.
"""

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

_PACKAGE = "torchmetrics"

_QUICK = {
    "__version__": "torchmetrics.__about__",
    "Metric": "torchmetrics.metric",
    "MetricCollection": "torchmetrics.collections",
}
"""Attribute of the package -> the module that has it."""


def install() -> None:
    """Import torchmetrics like this from now on, unless it is imported already."""
    if _PACKAGE not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds torchmetrics, and nothing else."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where torchmetrics is, with another loader; None for other modules."""
        if fullname != _PACKAGE:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _QuickLoader(spec.loader)
        return spec


class _QuickLoader(Loader):
    """Runs the package's ``__init__`` when an attribute is missing."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the package's own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Give the package a ``__getattr__`` and a logger in place of its content."""

        def get(name: str) -> Any:
            if name in _QUICK:
                with suppress(ImportError):  # another version, with other files
                    import_module(f"{_PACKAGE}.utilities")  # imports ``metric`` when it can be
                    return getattr(import_module(_QUICK[name]), name)
                for each in [each for each in sys.modules if each.startswith(f"{_PACKAGE}.")]:
                    del sys.modules[each]
            elif name.startswith("__"):
                raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}")
            module.__dict__.pop("__getattr__", None)
            self._loader.exec_module(module)
            return getattr(module, name)

        module.__dict__["_logger"] = logging.getLogger(_PACKAGE)
        module.__dict__["__getattr__"] = get
