"""The folder of a run or sweep: a new one, or with ``resume`` the folder of an earlier start."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fedexp.cli.compose import checked_once
from fedexp.cli.quoting import parsed
from fedexp.cli.sweeps import is_multirun, sweeps_several
from fedexp.config.added_keys import REMOVED
from fedexp.config.keys import may_change, override_key
from fedexp.distributed import launcher
from fedexp.errors import InputError
from fedexp.state import run_folder
from fedexp.state.atomic import write_atomically
from fedexp.state.folder_lock import check_free, locked, remove_unused

LOGGER = logging.getLogger(__name__)

_SWEEP = "multirun.yaml"
_FOLDERS = ("hydra.run.dir", "hydra.sweep.dir")  # a folder that was moved is resumed where it is
HELD = ExitStack()
"""What the command ends at its end, such as the lock on the folder of the sweep that it runs.

Hydra works with copies of its callbacks, so they cannot keep it.
"""
_JOBS = ("hydra.sweeper.", "hydra/sweeper=")  # overrides that determine the jobs of a sweep


def with_saved_overrides(overrides: Sequence[str]) -> list[str]:
    """Put the overrides that are saved in ``resume=FOLDER`` before the typed overrides.

    So ``resume=FOLDER`` alone repeats the config of that run or sweep. A typed override replaces a
    saved override of the same key. If the folder has no saved overrides, none are added.

    Args:
        overrides: the typed arguments, with flags; a sweep is resumed with the flag ``-m``.

    Raises:
        InputError: the folder holds a sweep, and ``-m`` is missing.
    """
    resume = [each.partition("=")[2] for each in overrides if override_key(each) == "resume"]
    if not resume or resume[-1] in ("", "null", run_folder.AUTO):
        return list(overrides)
    folder, is_sweep = Path(resume[-1].strip("'\"")).expanduser(), is_multirun(overrides)
    path = folder / _SWEEP if is_sweep else folder / ".hydra" / "overrides.yaml"
    try:
        if not is_sweep and (folder / _SWEEP).is_file():
            raise InputError(f"resume={folder}: holds a sweep; resume it with -m resume={folder}")
        saved: Any = OmegaConf.to_container(OmegaConf.load(path))  # ${...} stays as typed
        if is_sweep:
            of_sweep = saved["hydra"]["overrides"]
            saved = [*of_sweep["hydra"], *of_sweep["task"]]
        _check_overrides(saved)
    except InputError:
        raise
    except OSError:
        return list(overrides)  # a later check reports a folder without run
    except (ValueError, LookupError, TypeError, OmegaConfBaseException, YAMLError):
        LOGGER.warning(
            "%s: is no list of overrides (KEY=VALUE), so only the typed ones count", path
        )
        return list(overrides)
    typed = {"resume", "hydra.mode", *_FOLDERS, *map(override_key, overrides)}
    removed = [f"{key}=false" for key in REMOVED]
    kept = [each for each in saved if override_key(each) not in typed and each not in removed]
    first = next(i for i, each in enumerate(overrides) if "=" in each and each[0] != "-")
    return [*overrides[:first], *kept, *overrides[first:]]  # flags and their values stay together


def _check_overrides(saved: Any) -> None:
    """Raise TypeError unless ``saved`` is a list of overrides."""
    texts = isinstance(saved, list) and all(isinstance(each, str) for each in saved)
    if not texts or not all("=" in each or each.startswith("~") for each in saved):
        raise TypeError("no overrides")


def choose_run_folder(root: str, new: str, *, _root_: DictConfig) -> str:
    """Choose the folder of a run; all processes of the run use the folder that rank 0 chooses.

    Args:
        root: the folder of all runs, which are two levels below it.
        new: the folder of a new run, relative to ``root``.
    """
    try:
        resume = OmegaConf.select(_root_, "resume")
    except OmegaConfBaseException:  # the job reports the error
        resume = None
    if resume not in (None, run_folder.AUTO):
        return str(Path(str(resume)).expanduser())
    found = None
    searches = resume is not None and launcher.this_process().rank == 0
    if searches and (config := _valid_config(_root_)) is not None:
        found = run_folder.find_unfinished(Path(root), config)
    return str(found or Path(root, new))


def choose_sweep_folder(
    root: str, new: str, resume: str | None, overrides: Sequence[str], of_hydra: Sequence[str]
) -> str:
    """Choose a sweep's folder; ``resume=auto`` takes the newest sweep with these overrides.

    A sweep with a job that has more rounds than the typed ``rounds`` is left alone.
    """
    if resume not in (None, run_folder.AUTO):
        return str(Path(resume).expanduser())
    if resume is not None:
        own = _swept(overrides)
        for path in sorted(Path(root).glob(f"*/*/{_SWEEP}"), reverse=True):
            try:
                if not path.is_file():  # reading a pipe could wait for ever
                    raise ValueError("it is no file")
                found = OmegaConf.load(path).hydra.overrides
                swept = own | _swept(found.task)
                wanted = _identifying(overrides, of_hydra, swept)
                same = _identifying(found.task, found.hydra, swept) == wanted
                fits = same and _most_rounds(path.parent) <= _typed_rounds(overrides)
            except (OSError, ValueError, AttributeError, TypeError, YAMLError) as error:
                reason = str(error).partition("\n")[0]
                LOGGER.warning("%s: is damaged or no file of Hydra (%s); skipped", path, reason)
                continue
            if fits:
                return str(path.parent)
    return str(Path(root, new))


def _most_rounds(sweep: Path) -> int:
    """The largest number of rounds that a job of the sweep has done. Raises InputError."""
    runs = (path.parent for path in sweep.glob(f"*/{run_folder.FILE_NAME}"))
    return max(map(run_folder.rounds_done, runs), default=0)


def _typed_rounds(overrides: Iterable[str]) -> float:
    """The typed value of ``rounds``; infinite if it has no value or several."""
    typed = [each.partition("=")[2] for each in overrides if override_key(each) == "rounds"]
    return float(typed[-1]) if typed and typed[-1].isdecimal() else math.inf


def check_run_folder(config: DictConfig) -> None:
    """Create the run's folder, or exit with one line if it holds another run.

    Args:
        config: the whole config, including Hydra's node.
    """
    if launcher.this_process().rank > 0:  # other ranks use the folder of rank 0
        return
    folder, checked = Path(config.hydra.run.dir), _valid_config(config)
    with _exit_in_one_line():
        if checked is not None:  # otherwise the job reports the error
            check_run(folder, checked)
        make_folder("hydra.run.dir", folder)
    HELD.enter_context(hydra_files_kept(folder))
    if checked is not None and checked.resume == run_folder.AUTO and not any(folder.iterdir()):
        place = _searched(config.hydra.run)
        _print_line(f"resume=auto: found no unfinished run with this config in {place}")


def _searched(node: DictConfig) -> Path:
    """The folder in which ``resume=auto`` has searched for runs or sweeps.

    Args:
        node: ``hydra.run`` or ``hydra.sweep``. If the user has typed its ``dir``, only that folder
            is searched.
    """
    written = str(OmegaConf.to_container(node, resolve=False)["dir"])  # type: ignore[index, call-overload]
    searched = re.match(r"\$\{(?:run|sweep)_folder:([^,]+),", written)
    return Path(searched[1] if searched else node.dir).resolve()


def check_sweep_folder(config: DictConfig) -> None:
    """Create and lock the sweep's folder, or exit with one line if the sweep cannot run in it.

    It cannot if another process is using the folder, if the folder holds another sweep, if
    ``resume`` names a folder without a sweep, or if torchrun or SLURM has started the process.
    """
    found = launcher.this_process()
    folder, resume = Path(config.hydra.sweep.dir), OmegaConf.select(config, "resume")
    with _exit_in_one_line(), _usable("hydra.sweep.dir", folder):
        if found.size > 1:
            raise InputError(
                f"{found.started_by} can start one run only; start a sweep without it and set "
                "engine.devices"
            )
        if (folder / _SWEEP).exists() or resume in (None, run_folder.AUTO):
            _hold(folder)
        exists = (folder / _SWEEP).exists()
        if exists and resume is None:
            raise InputError(
                f"hydra.sweep.dir={folder}: already holds a sweep; name another folder, or resume "
                f"the sweep with resume={folder}"
            )
        if not exists and resume not in (None, run_folder.AUTO):
            raise InputError(f"resume={resume}: has no sweep")
    if exists and resume is not None:
        HELD.enter_context(_sweep_file_kept(folder))
        for job in folder.glob(f"*/{run_folder.FILE_NAME}"):
            HELD.enter_context(hydra_files_kept(job.parent))
        _print_line(f"resuming the sweep in {folder}")
    elif resume is not None:
        _print_line(
            f"resume=auto: found no sweep like this one in {_searched(config.hydra.sweep)}; "
            f"starting a new one in {folder}"
        )


def _hold(folder: Path) -> None:
    """Create and lock a sweep's folder until the command ends. Raises InputError."""
    make_folder("hydra.sweep.dir", folder)
    HELD.enter_context(locked(folder))
    HELD.callback(remove_unused, folder)  # a sweep that cannot begin leaves nothing


def check_run(folder: Path, config: Any) -> None:
    """Raise InputError unless a run with ``config`` may start or resume in ``folder``."""
    with _usable("hydra.run.dir", folder), suppress(FileNotFoundError, NotADirectoryError):
        folder.stat()
    sweeps = (each for each in folder.resolve().parents if (each / _SWEEP).is_file())
    for each in (folder, *sweeps):  # a sweep's jobs do not come here
        check_free(each)
    found = run_folder.check(folder, config)
    if config.resume not in (None, run_folder.AUTO) and found is None:
        raise InputError(f"resume={folder}: has no run")


def hydra_files_kept(folder: Path) -> AbstractContextManager[None]:
    """After the block, put back the files in ``.hydra``, unless the run has begun or gone on.

    Hydra writes these files before it is known whether the run can be resumed, and the next
    ``resume`` takes its overrides from them.
    """
    return _kept(
        lambda: [folder / run_folder.FILE_NAME], lambda: (folder / ".hydra").glob("*.yaml")
    )


def _sweep_file_kept(folder: Path) -> AbstractContextManager[None]:
    """After the block, put back ``multirun.yaml``, unless a job has begun or gone on.

    The sweeper writes this file before a job accepts its config, and the next ``resume`` takes its
    overrides from it.
    """
    return _kept(lambda: folder.glob(f"*/{run_folder.FILE_NAME}"), lambda: [folder / _SWEEP])


@contextmanager
def _kept(
    identities: Callable[[], Iterable[Path]], files: Callable[[], Iterable[Path]]
) -> Iterator[None]:
    """After the block, put back ``files``, unless one of ``identities`` has changed.

    Both return paths. ``identities`` are files ``run.json``: a run that goes on with another config
    has another one than before.
    """
    known, before = _read(identities()), _read(files())
    try:
        yield
    finally:
        after = _read(files())
        if before and _read(identities()) == known:
            with suppress(OSError):
                for path in after.keys() - before.keys():
                    path.unlink()
                for path in (path for path in before if before[path] != after.get(path)):
                    write_atomically(path, before[path])


def _read(paths: Iterable[Path]) -> dict[Path, bytes]:
    """The files' contents; empty if one of them cannot be read."""
    try:
        return {path: run_folder.read_small_file(path) for path in paths}
    except OSError:
        return {}


def make_folder(key: str, folder: Path) -> Path:
    """Create the folder if absent. Raises InputError with ``key`` if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{key}={folder}: cannot be made ({error.strerror})") from error
    return folder


@contextmanager
def _exit_in_one_line() -> Iterator[None]:
    """Exit with one line after an InputError; Hydra itself would only warn and go on."""
    try:
        yield
    except InputError as error:
        _print_line(str(error))
        raise SystemExit(1) from None


@contextmanager
def _usable(key: str, folder: Path) -> Iterator[None]:
    """Turn an OSError, such as a name that is too long or a circle of links, into an InputError."""
    try:
        yield
    except OSError as error:
        line = f"{key}={folder}: cannot be used ({error.strerror}); name another folder"
        raise InputError(line) from error


def _valid_config(cfg: DictConfig) -> Any:
    """The checked config without Hydra's node; None if it is invalid."""
    try:
        return checked_once(cfg, cfg.hydra).config
    except InputError:
        return None


def _swept(overrides: Iterable[str]) -> set[str]:
    """The keys with several values that a resumed run may change; each value is a job."""
    words = (parsed(each) for each in overrides if may_change(override_key(each)))
    return {each.key_or_group for each in words if each is not None and sweeps_several(each)}


def _identifying(
    overrides: Sequence[str], of_hydra: Sequence[str], swept: Container[str]
) -> list[str]:
    """The overrides that identify a sweep; they keep their order, which decides the job numbers.

    Args:
        overrides: the overrides of the jobs.
        of_hydra: the overrides of Hydra's own keys.
        swept: keys that count although a resumed run may change them.
    """
    jobs = [each for each in of_hydra if each.lstrip("+").startswith(_JOBS)]
    keys = ((each, override_key(each)) for each in overrides)
    return [*(each for each, key in keys if key in swept or not may_change(key)), *jobs]


def _print_line(line: str) -> None:
    print(f"fedexp: {line}", file=sys.stderr)
