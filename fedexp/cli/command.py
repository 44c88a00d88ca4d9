"""Functions that Hydra's commands share: the start and the end of a command.

Imports nothing slow except Hydra, so that ``--help`` and completion are quick.
"""

import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fedexp.cli.arguments import config_dir_in, flags_last
from fedexp.cli.help import config_groups, paper_tables
from fedexp.cli.hydra_api import register_resolver
from fedexp.cli.hydra_errors import one_line
from fedexp.cli.option_folders import config_folder
from fedexp.cli.own_frames import print_shortened
from fedexp.cli.quoting import with_home
from fedexp.cli.resume import HELD, choose_run_folder, choose_sweep_folder, with_saved_overrides
from fedexp.cli.sweeps import check_in_jobs
from fedexp.errors import InputError
from fedexp.runtime.interrupts import exit_on_interrupt
from fedexp.state.disk_errors import disk_errors_in_one_line

# A random suffix, so that two runs started in the same second do not share a folder.
register_resolver("run_id", lambda: secrets.token_hex(2), use_cache=True)
register_resolver("run_folder", choose_run_folder)
# Cached, so that all jobs of a sweep get the same folder.
register_resolver("sweep_folder", choose_sweep_folder, use_cache=True)
register_resolver("config_groups", config_groups)
register_resolver("paper_tables", paper_tables)


def run_command(job: Callable[[], object]) -> None:
    """Run a Hydra command; print an error in the command line as one line."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises its errors instead of printing them
    try:
        typed = with_saved_overrides(with_home(flags_last(sys.argv[1:])))
        sys.argv[1:] = check_in_jobs(typed, Path(config_folder()))
        with one_line(typed), disk_errors_in_one_line(), HELD:
            _check_folder_of_user(typed)
            job()
    except InputError as error:
        raise SystemExit(f"fedexp: {error}") from None
    except Exception as error:  # an error in a user's part, or a mistake of fedexp
        print_shortened(error)
        raise SystemExit(1) from None
    except KeyboardInterrupt:  # before the job began
        print("fedexp: interrupted", file=sys.stderr)
        raise SystemExit(128 + signal.SIGINT) from None


def _check_folder_of_user(arguments: Sequence[str]) -> None:
    """Refuse ``--config-dir`` with fedexp's own folder: there a user's file changes fedexp itself.

    Raises:
        InputError: the flag names this folder.
    """
    typed = config_dir_in(arguments)
    if typed and Path(typed).resolve() == Path(config_folder()).resolve():
        raise InputError(
            f"--config-dir {typed}: is fedexp's own folder, whose options are always there; files "
            "of yours belong into a folder outside of fedexp"
        )


@contextmanager
def exit_in_one_line(folder: Path) -> Iterator[None]:
    """Exit with one line, not a traceback, after an InputError or a Ctrl-C.

    After an InputError ``folder`` is deleted if the run has written no file.
    """
    try:
        with exit_on_interrupt(folder):
            yield
    except InputError as error:
        remove_if_unused(folder)
        raise SystemExit(f"fedexp: {error}") from None


def remove_if_unused(folder: Path) -> None:
    """Delete the folder of a run if it holds nothing except Hydra's folder ``.hydra``."""
    if {path.name for path in folder.glob("*")} <= {".hydra"}:
        shutil.rmtree(folder, ignore_errors=True)  # another process may delete it at the same time
