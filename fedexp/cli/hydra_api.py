"""Names that differ between Hydra 1.3 with OmegaConf 2.3 and Hydra 1.4 with OmegaConf 2.4."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import hydra
import omegaconf
from hydra.core.config_loader import ConfigLoader
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf

from fedexp.config.keys import override_key
from fedexp.config.wandb_variables import value_of

_IS_OLD = hydra.__version__.startswith("1.3.")
_HAS_OLD_NAMES = omegaconf.__version__.startswith("2.3.")  # register_resolver has another name
_BASE = {"version_base": "1.3"} if _IS_OLD else {}
_EXECUTED = ("fedexp.*", "hydra_plugins.*", "logging.*", "colorlog.*", "optuna.*")
"""Python names that the config node ``hydra`` may call in Hydra 1.4, such as callbacks."""


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


def typed_overrides(hydra_config: Any) -> list[str]:
    """The overrides on the command line of this job, in which ``${...}`` is not resolved."""
    return cast(list[str], OmegaConf.to_container(hydra_config.overrides.task))


def register_resolver(name: str, resolver: Callable[..., Any], use_cache: bool = False) -> None:
    """Register or replace a resolver of interpolations such as ``${name:argument}``."""
    current = "register_new_resolver" if _HAS_OLD_NAMES else "register_resolver"
    getattr(OmegaConf, current)(name, resolver, use_cache=use_cache, replace=True)


def runs_one_by_one(launcher: Launcher) -> bool:
    """Whether this is Hydra's own launcher, which runs one job after another in this process."""
    return type(launcher).__name__ == "BasicLauncher"


def job_config(loader: ConfigLoader, sweep: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The config of one job of a sweep, composed from the sweep's config and the job's overrides.

    The result is the same as in Hydra 1.3. Hydra 1.4 itself would refuse a job whose sweeper
    differs from the sweeper of the sweep, such as a cell of a table or a trial of a search. The
    keys of the sweep's sweeper are left out: a cell of a table may lack them.
    """
    typed: Any = OmegaConf.to_container(sweep.hydra.overrides.hydra)
    typed = [each for each in typed if not override_key(each).startswith("hydra.sweeper.")]
    name = sweep.hydra.job.config_name
    config = loader.load_configuration(name, [*typed, *overrides], RunMode.RUN)
    OmegaConf.copy_cache(from_config=sweep, to_config=config)
    return config


def for_launchers(context: HydraContext) -> HydraContext:
    """Copy Hydra's context for a launcher; the copy's loader composes jobs with ``job_config``."""
    return replace(context, config_loader=cast(ConfigLoader, _JobLoader(context.config_loader)))


def launcher_of(context: HydraContext, task: TaskFunction, config: DictConfig) -> Launcher:
    """The launcher of a sweep with this config."""
    launcher: Launcher = Plugins.instance().instantiate_launcher(
        hydra_context=for_launchers(context), task_function=task, config=config
    )
    return launcher


class _JobLoader:
    """A config loader whose ``load_sweep_config`` is ``job_config``."""

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader

    def load_sweep_config(self, master: DictConfig, overrides: Sequence[str]) -> DictConfig:
        return job_config(self._loader, master, overrides)

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # unpickling asks for _loader before it is set
            raise AttributeError(name)
        return getattr(self._loader, name)


register_resolver("wandb", value_of)  # every command composes the defaults that need it
