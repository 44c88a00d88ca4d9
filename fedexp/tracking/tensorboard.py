"""TensorBoard, for those who prefer it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from fedexp.tracking.figures import pixels
from fedexp.tracking.tracker import Record, Tracker


class TensorBoardTracker(Tracker):
    """Scalars and figures in ``folder/tensorboard``; the step is the round.

    Args:
        folder: the run's folder.
        done: rounds in a resumed run's checkpoint; what was written of later ones is not shown.
    """

    def __init__(self, folder: Path, done: int = 0) -> None:
        self._writer = SummaryWriter(folder / "tensorboard", purge_step=done + 1 if done else None)

    def log(self, record: Record) -> None:
        """Write this round's scalars and figures."""
        for name, value in record.metrics.items():
            self._writer.add_scalar(name, value, record.round)
        for name, figure in record.figures.items():
            self._writer.add_image(name, pixels(figure)[..., :3], record.round, dataformats="HWC")
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Close the event file."""
        self._writer.close()
