"""Compositions of configs in a third of the time: a third of the tests' time was Hydra's.

Only what Hydra and OmegaConf compute again and again is replaced, never a result.
``tests/config/test_quick_hydra.py`` compares.
"""

import copy
import functools
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hydra.version
import omegaconf._utils
import omegaconf.base
import pytest
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository, ConfigRepository
from hydra.core.object_type import ObjectType
from omegaconf import DictConfig
from omegaconf.basecontainer import BaseContainer

from fedexp.cli.command import config_folder


@contextmanager
def quick_hydra() -> Iterator[None]:
    """Compose configs faster in this block."""
    parse = functools.cache(omegaconf.base.parse)  # trees are only read
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigRepository, "load_config", _load_once(ConfigRepository.load_config))
        patch.setattr(CachingConfigRepository, "__init__", _of_repository)
        patch.setattr(omegaconf.base, "parse", parse)
        patch.setattr(omegaconf._utils, "parse", parse)
        patch.setattr(hydra.version, "_get_version", functools.cache(hydra.version._get_version))
        if _all_choices:
            patch.setattr(defaults_list, "_create_interpolation_map", _choices_if_needed)
        patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", _merged_at_once)
        yield


_PACKAGES = f"file://{config_folder()}", "pkg://hydra.conf"
"""The config folders whose files do not change while tests run."""


def _load_once(load: Any) -> Any:
    """Read each file of fedexp and of Hydra once."""
    pickled = dict[tuple[str, str], bytes]()

    def load_once(repository: Any, config_path: str) -> Any:
        source = repository._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or f"{source.scheme()}://{source.path}" not in _PACKAGES:
            return load(repository, config_path)
        key = source.path, config_path
        if key not in pickled:
            pickled[key] = pickle.dumps(load(repository, config_path))
        return pickle.loads(pickled[key])  # half of the time of copy.deepcopy

    return load_once


def _of_repository(self: Any, delegate: Any) -> None:
    """Copy the repository without its sources, which are replaced and never changed."""
    self.delegate, self.cache = copy.copy(delegate), {}


# Hydra 1.4 has no such function.
_all_choices: Any = getattr(defaults_list, "_create_interpolation_map", None)


def _choices_if_needed(overrides: Any, defaults: Any, self_added: bool) -> Any:
    """The choices so far, which only an entry with ``${...}`` reads."""
    is_read = any(each.is_interpolation() for each in defaults)
    return _all_choices(overrides, defaults, self_added) if is_read else None


_merged = ConfigLoaderImpl._compose_config_from_defaults_list


def _merged_at_once(loader: Any, defaults: Any, repo: Any) -> DictConfig:
    """Set the nodes' parents at the end, not after each of sixty files: half of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseContainer, "_re_parent", lambda config: None)
        config: DictConfig = _merged(loader, defaults, repo)
    config._re_parent()
    return config
