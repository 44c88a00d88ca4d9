"""The tracker that saves tables as files."""

import logging
from pathlib import Path

from fedexp.tracking.tracker import Record, RunInfo, Tracker

LOGGER = logging.getLogger(__name__)


class TableFiles(Tracker):
    """Appends each table to ``<name>.csv`` in the run's folder; the first column is the round.

    When a run is resumed, rows of the rounds that are trained again are deleted.
    """

    def __init__(self, run: RunInfo) -> None:
        self._folder = run.folder
        for path in run.folder.glob("*.csv") if run.resumed else ():
            _delete_rounds_after(run.rounds_done, path)

    def log(self, record: Record) -> None:
        """Save this round's tables."""
        import pandas as pd  # slow to import; most runs have no table

        for name, table in record.tables.items():
            frame = pd.DataFrame({"round": record.round, **table})
            path = self._folder / f"{name}.csv"
            frame.to_csv(path, mode="a", header=not path.exists(), index=False)


def _delete_rounds_after(round: int, path: Path) -> None:
    """Delete the rows of later rounds from a table that ``TableFiles`` wrote.

    A file that is no table, perhaps after a power loss, is renamed with a warning.
    """
    import pandas as pd

    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)  # every digit stays
        if frame.columns[0] == "round":
            frame[frame["round"].astype(int) <= round].to_csv(path, index=False)
    except ValueError as error:
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        LOGGER.warning("%s is damaged (%s), now named %s", path, error, aside.name)
