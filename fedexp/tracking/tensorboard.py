"""The tracker that writes event files for TensorBoard."""

from collections.abc import Mapping
from typing import Any

from fedexp.drawing.data_figure import pixels
from fedexp.tracking.failed_figures import leaving_out
from fedexp.tracking.tracker import Record, RunInfo, Tracker


class TensorBoardTracker(Tracker):
    """Writes metrics and figures to ``tensorboard/`` in the run's folder; a step is a round.

    When a run is resumed, TensorBoard hides the earlier results of rounds that are trained again.
    """

    def __init__(self, run: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        purge = run.rounds_done + 1 if run.rounds_done else 0 if run.resumed else None
        self._writer = SummaryWriter(run.folder / "tensorboard", purge_step=purge)

    def log(self, record: Record) -> None:
        """Write this round's metrics and figures."""
        for name, value in record.metrics.items():
            self._writer.add_scalar(name, value, record.round)
        for name, figure in record.figures.items():
            with leaving_out(name, figure):
                image = pixels(figure)
                self._writer.add_image(name, image, record.round, dataformats="HWC")
        self._writer.flush()

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Close the event file."""
        self._writer.close()
