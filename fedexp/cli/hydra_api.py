"""Names that differ between Hydra 1.3 with OmegaConf 2.3 and Hydra 1.4 with OmegaConf 2.4."""

from collections.abc import Callable
from typing import Any

import hydra
import omegaconf
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

_IS_OLD = hydra.__version__.startswith("1.3.")
_HAS_OLD_NAMES = omegaconf.__version__.startswith("2.3.")  # register_resolver is another one there
_BASE = {"version_base": "1.3"} if _IS_OLD else {}
_EXECUTED = ("fedexp.*", "hydra_plugins.*", "logging.*", "colorlog.*", "optuna.*")
"""What Hydra 1.4 may call by a name in its own node: callbacks, log handlers, Optuna's samplers."""


def command(config_folder: str) -> Callable[[Callable[[DictConfig], Any]], Callable[[], None]]:
    """``hydra.main`` for the config tree in this folder."""
    options: dict[str, Any] = _BASE if _IS_OLD else {"execution_whitelist": _EXECUTED}
    decorator: Callable[[Callable[[DictConfig], Any]], Callable[[], None]]
    decorator = hydra.main(config_path=config_folder, config_name="config", **options)
    return decorator


def initialize(config_folder: str) -> Any:
    """``hydra.initialize_config_dir`` for the config tree in this folder."""
    options: dict[str, Any] = _BASE
    return hydra.initialize_config_dir(config_folder, job_name="fedexp", **options)


def register_resolver(name: str, resolver: Callable[..., Any], use_cache: bool = False) -> None:
    """Register a resolver of interpolations such as ``${name:argument}``, again if need be."""
    current = "register_new_resolver" if _HAS_OLD_NAMES else "register_resolver"
    getattr(OmegaConf, current)(name, resolver, use_cache=use_cache, replace=True)


def runs_one_by_one(launcher: Launcher) -> bool:
    """Whether it is Hydra's own launcher, which runs one job after another in this process."""
    return type(launcher).__name__ == "BasicLauncher"
