"""The program that uploads a W&B record while a run writes it.

``python -m fedexp.tracking.wandb_uploader FILE.wandb`` runs W&B's own ``wandb beta sync --live``.
It ends when the record is closed and uploaded, or when its standard input is closed: so it never
outlives the run, even if the run is killed.
"""

import os
import signal
import sys
from threading import Thread

from wandb.cli.cli import cli


def _end_with_the_run() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> None:
    """Upload the record that the command line names."""
    for each in (signal.SIGINT, signal.SIGTERM):  # they are for the run, which then saves
        signal.signal(each, signal.SIG_IGN)
    Thread(target=_end_with_the_run, daemon=True).start()
    cli(["beta", "sync", "--live", sys.argv[1]])


if __name__ == "__main__":
    main()
