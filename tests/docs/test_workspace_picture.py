"""The sketch of W&B's workspace has the panels of the view that is sent."""

from pathlib import Path

import numpy as np
from generate.workspace_picture import draw, sections
from matplotlib.image import imsave
from support.run_files import write_run

from fedexp.reporting.report import Report
from fedexp.tracking.jsonl import PER_CLASS

ROW = {"global/accuracy": 0.5, "train/loss": 1.0, "geometry/angle": 90.0, PER_CLASS: {"a": 0.5}}


def test_every_open_panel_of_the_first_rows_and_every_section_is_drawn(tmp_path: Path) -> None:
    for algorithm in ("fedavg", "fednh"):
        folder = write_run(tmp_path / algorithm, [f"algorithm={algorithm}"], [ROW, ROW])
        (folder / "figures").mkdir()
        imsave(folder / "figures" / "heatmap_partition_0000.png", np.zeros((2, 2)))
    report = Report.read(tmp_path)
    panels = [each["panels"][:3] for each in sections(report) if each["isOpen"]]
    figure = draw(report)
    drawn = [axes.get_title(loc="left") for axes in figure.axes]
    assert len(list(filter(None, drawn))) == sum(map(len, panels)) == 2 + 2 + 1 + 1
    headings = {text.get_text().partition("  ")[2] for axes in figure.axes for text in axes.texts}
    assert {each["name"] for each in sections(report)} <= headings
    assert "geometry" in headings
