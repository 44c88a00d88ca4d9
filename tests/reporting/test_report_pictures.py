import math
import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from support.run_files import accuracies, write_run

from fedexp.reporting.bars import bar_figures
from fedexp.reporting.curves import curve_figures, mean_curve
from fedexp.reporting.drawing import pages
from fedexp.reporting.files import write
from fedexp.reporting.hyperparameter import hyperparameter_figure, is_logarithmic, varied_number
from fedexp.reporting.pictures import pictures
from fedexp.reporting.report import Report
from fedexp.reporting.saved_arrays import SAVED, entropy_panels, selection_panels


def lines(axes: Axes) -> dict[str, list[float]]:
    return {str(line.get_label()): list(line.get_ydata()) for line in axes.get_lines()}


def test_the_mean_curve_is_over_rounds_that_every_seed_measured(tmp_path: Path) -> None:
    write_run(tmp_path / "0", ["seed=0"], accuracies(0.1, 0.2, 0.3))
    write_run(tmp_path / "1", ["seed=1"], accuracies(0.3, 0.2))
    curve = mean_curve(Report.read(tmp_path).runs, "global/accuracy")
    assert curve.rounds.tolist() == [1, 2]
    assert curve.mean.tolist() == pytest.approx([0.2, 0.2])
    assert curve.std.tolist() == pytest.approx([0.02**0.5, 0])  # of 0.1, 0.3


def test_the_training_loss_has_the_deviation_over_clients(tmp_path: Path) -> None:
    """A band for one run, too; the mean of the deviations within two."""
    for seed, spread in enumerate([(0.2, 0.3), (0.4, 0.1)]):
        rows: list[dict[str, Any]] = [
            {"global/accuracy": 0.5, "train/cross_entropy": 2 - n, "train/cross_entropy_std": each}
            for n, each in enumerate(spread)
        ]
        write_run(tmp_path / str(seed), [f"seed={seed}"], rows)
    runs = Report.read(tmp_path).runs
    loss, deviation = "train/cross_entropy", "train/cross_entropy_std"
    assert mean_curve(runs[:1], loss, deviation=deviation).std.tolist() == [0.2, 0.3]
    curve = mean_curve(runs, loss, deviation=deviation)
    assert curve.mean.tolist() == [2, 1]
    assert curve.std.tolist() == pytest.approx([0.3, 0.2])
    drawn = {each.name: each.title for each in pictures(Report.read(tmp_path))[0]}
    assert "deviation over clients" in drawn["curves_train_cross_entropy"]


def test_short_curves_are_not_called_smoothed(tmp_path: Path) -> None:
    write_run(tmp_path / "0", ["seed=0"], accuracies(*[0.1] * 12))
    made = Report.read(tmp_path, smooth=True)
    assert made.problems == [
        "global/accuracy: 1 of 1 runs have fewer than 13 measurements, too few to be smoothed"
    ]
    assert pictures(made).drawn[0].title == "global/accuracy over rounds"
    write_run(tmp_path / "1", ["seed=1"], accuracies(*[0.1] * 13))
    assert "smoothed" in pictures(Report.read(tmp_path, smooth=True)).drawn[0].title


def test_methods_of_one_setting_share_a_panel(tmp_path: Path) -> None:
    for n, name in enumerate(["fedavg", "fednh", "ditto", "fedrep", "moon", "fedsc"]):
        for rho in (1, 2):
            overrides = [f"algorithm={name}", f"head.rho={rho}"]
            write_run(tmp_path / f"{n}_{rho}", overrides, accuracies(0.1 * n, 0.1 * rho))
    shutil.rmtree(tmp_path / "0_2")  # no fedavg in the second panel
    configurations = Report.read(tmp_path).configurations
    (draw,) = curve_figures(configurations, "global/accuracy", False, [0.5])
    first, second = draw().axes
    colors = [
        {line.get_label(): line.get_color() for line in axes.get_lines()[:-1]}
        for axes in (first, second)
    ]
    assert colors[1] == {name: colors[0][name] for name in lines(second) if name in colors[0]}
    assert len(colors[1]) == 5
    assert (first.get_title(), second.get_title()) == ("rho=1", "rho=2")
    assert lines(first)["moon"] == pytest.approx([0.4, 0.1])
    assert lines(second)["moon"] == pytest.approx([0.4, 0.2])
    assert [0.5, 0.5] in lines(first).values()  # the target
    assert curve_figures(configurations, "personal/std", False, []) == []


def test_pages() -> None:
    assert pages(range(5), 2) == [[0, 1], [2, 3], [4]]


def test_later_pages_are_drawn_where_every_picture_is_asked_for(tmp_path: Path) -> None:
    for n in range(31):
        write_run(tmp_path / str(n), [f"algorithm=a{n}"], accuracies(0.1, n / 31))
    made = Report.read(tmp_path)
    drawn, left_out, _ = pictures(made)
    assert [each.name for each in drawn] == ["curves_global_accuracy", "bars_global_accuracy"]
    assert left_out == ["bars_global_accuracy_2"]
    files = write(made, tmp_path / "report", ["md"])
    sentence = "Not drawn: bars_global_accuracy_2; --figures all draws them\n"
    assert sentence in files[0].read_text()
    assert len(list((tmp_path / "report" / "figures").iterdir())) == 2
    write(made, tmp_path / "all", ["md", "pdf"], every_figure=True)
    assert len(list((tmp_path / "all" / "figures").iterdir())) == 6


def test_no_text_leaves_the_picture_or_meets_another(tmp_path: Path) -> None:
    """Margins are fixed, so long numbers and names must fit into them."""
    write_run(tmp_path / "0", ["head.rho=1"], accuracies(0.0001, 0.0005))
    write_run(tmp_path / "1", ["head.rho=2"], accuracies(0.0002, 0.0011))
    made = Report.read(tmp_path)
    (curves,) = curve_figures(made.configurations, "global/accuracy", False, [])
    rows = made.results[made.results["statistic"] == "final"]
    (bars,) = bar_figures(rows, ["a" * 40, "b"], "global/accuracy")
    for figure in (curves(), bars()):
        FigureCanvasAgg(figure).draw()
        (axes,) = figure.axes
        texts = [axes.xaxis.label, axes.yaxis.label]
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            # Numbers outside the axes' range are not drawn.
            places = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
            texts += [each for at, each in places if min(low, high) <= at <= max(low, high)]
        shown = [each.get_window_extent() for each in texts if each.get_text()]
        assert len(shown) > 5
        assert all(box.x0 >= 0 and box.y0 >= 0 for box in shown)
        assert all(box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in shown)
        assert not any(one.overlaps(two) for one, two in combinations(shown, 2))


def test_a_metric_against_the_only_number(tmp_path: Path) -> None:
    for n, (rho, value) in enumerate([(0.1, 0.5), (1, 0.7), (10, 0.4)]):
        for name in ("fedavg", "fednh"):
            overrides = [f"algorithm={name}", f"head.rho={rho}"]
            write_run(tmp_path / f"{n}_{name}", overrides, accuracies(0.1, value))
    made = Report.read(tmp_path)
    assert varied_number(made.configurations) == "head.rho"
    rows = made.results
    rows = rows[(rows["metric"] == "global/accuracy") & (rows["statistic"] == "final")]
    figure = hyperparameter_figure(rows, made.keys, "head.rho", "accuracy", relative=True)
    assert figure is not None
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    first = axes.get_lines()[0]
    assert list(first.get_xdata()) == [0.1, 1, 10]
    assert list(first.get_ydata()) == pytest.approx([0, 0.2, -0.1])
    drawn, left_out, _ = pictures(made)
    assert "values_global_accuracy_head.rho" in {picture.name for picture in drawn}
    assert left_out == ["bars_global_accuracy", "gain_global_accuracy_head.rho"]
    every, left_out, _ = pictures(made, every=True)
    assert "gain_global_accuracy_head.rho" in {picture.name for picture in every}
    assert left_out == []


def test_runs_without_the_varied_number_are_a_horizontal_line(tmp_path: Path) -> None:
    """FedGELA, Figure 4: FedAvg has no energy."""
    for seed in (0, 1):
        for energy, value in ((10, 0.5), (100, 0.7), (1000, 0.6)):
            overrides = ["algorithm=fedgela", f"head.energy={energy}", f"seed={seed}"]
            write_run(tmp_path / f"{energy}_{seed}", overrides, accuracies(value))
        overrides = ["algorithm=fedavg", f"seed={seed}"]
        write_run(tmp_path / f"fedavg_{seed}", overrides, accuracies(0.3 + 0.2 * seed))
    made = Report.read(tmp_path)
    assert varied_number(made.configurations) == "head.energy"
    rows = made.results[made.results["statistic"] == "final"]
    figure = hyperparameter_figure(rows, made.keys, "head.energy", "accuracy")
    assert figure is not None
    (axes,) = figure.axes
    handles, names = axes.get_legend_handles_labels()
    assert names == ["fedavg", "fedgela"]
    assert list(handles[0].get_ydata()) == pytest.approx([0.4, 0.4])
    band = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    assert (band.y0, band.y1) == pytest.approx((0.4 - 0.02**0.5, 0.4 + 0.02**0.5))
    assert axes.get_xscale() == "log"
    gain = hyperparameter_figure(rows, made.keys, "head.energy", "accuracy", relative=True)
    assert gain is not None
    assert gain.axes[0].get_legend_handles_labels()[1] == ["fedgela"]


def test_two_numbers_or_two_values_are_no_axis(tmp_path: Path) -> None:
    for n in range(3):
        overrides = [f"head.rho={n}", f"clients.count={3 + (n > 1)}"]
        write_run(tmp_path / "determined" / str(n), overrides)
    # The number of clients follows from rho.
    assert varied_number(Report.read(tmp_path / "determined").configurations) == "head.rho"
    for n in range(2):
        write_run(tmp_path / "two" / str(n), [f"head.rho={n}"])
    assert varied_number(Report.read(tmp_path / "two").configurations) is None


def test_the_axis_is_logarithmic_from_two_decades() -> None:
    assert is_logarithmic([0.1, 1, 10])
    assert not is_logarithmic([0.1, 0.5, 0.9])
    assert not is_logarithmic([0, 1, 1000])


def test_saved_arrays_side_by_side(tmp_path: Path) -> None:
    for n, name in enumerate(("fedavg", "fednh", "ditto", "moon")):
        folder = write_run(tmp_path / str(n), [f"algorithm={name}"]) / "figures"
        folder.mkdir()
        if name == "moon":
            (folder / "heatmap_prototype_similarity_0001.npz").write_text("damaged")
        elif name != "ditto":
            similarity = np.eye(3) * (n + 1) / 2
            for last in (1, 9):
                path = folder / f"heatmap_prototype_similarity_{last:04d}.npz"
                np.savez(path, similarity=similarity, superclasses=np.array(["b", "a", "b"]))
    problems: list[str] = []
    (draw,) = SAVED[2].pages(Report.read(tmp_path).configurations, problems)
    figure = draw()
    damaged = tmp_path / "3" / "figures" / "heatmap_prototype_similarity_0001.npz"
    assert problems == [f"{damaged}: left out of its picture (File is not a zip file)"]
    assert figure is not None
    first, second = figure.axes[:2]
    assert first.get_title() == "fedavg, round 9"
    np.testing.assert_array_equal(second.get_images()[0].get_array(), np.eye(3))
    assert len(figure.axes) == 3  # with the colours


def heights(axes: Axes) -> list[list[float]]:
    """Of each row of bars."""
    outlines: list[Any] = list(axes.patches)
    return [outline.get_data().values[::2].tolist() for outline in outlines]


def test_entropies_are_bars_in_the_order_of_the_true_ones() -> None:
    arrays = {"true_nats": np.array([2.0, 1.0]), "estimated_nats": np.array([1.9, 1.2])}
    figure = entropy_panels({"hics": (5, arrays)})
    assert heights(figure.axes[0]) == [[1.0, 2.0], [1.2, 1.9]]


def test_how_often_clients_of_each_entropy_were_chosen(tmp_path: Path) -> None:
    text = "client,times_chosen,label_entropy_nats\n"
    for n, (name, times) in enumerate([("random", (3, 4)), ("hics", (1, 6))]):
        for seed in (0, 1):
            overrides = [f"sampler={name}", f"seed={seed}"]
            folder = write_run(tmp_path / f"{n}_{seed}", overrides) / "figures"
            folder.mkdir()
            if seed:  # the first of them has none
                rows = f"0,{times[1]},2.0\n1,{times[0]},0.5\n"
                (folder / "sampler_times_chosen_0007.csv").write_text(text + rows)
    configurations = Report.read(tmp_path).configurations
    (draw,) = SAVED[0].pages(configurations, [])
    figure = draw()
    assert figure is not None
    first, second = figure.axes
    assert (first.get_title(), second.get_title()) == ("random, 7 rounds", "hics, 7 rounds")
    points, means = second.get_lines()
    assert list(zip(points.get_xdata(), points.get_ydata(), strict=True)) == [(2.0, 6), (0.5, 1)]
    assert list(zip(means.get_xdata(), means.get_ydata(), strict=True)) == [(0.5, 1), (2.0, 6)]
    assert first.get_ylim() == second.get_ylim()
    assert "sampler_times_chosen" in {each.name for each in pictures(Report.read(tmp_path))[0]}


def test_the_line_is_the_mean_of_each_tenth_of_the_clients() -> None:
    arrays = {"label_entropy_nats": np.arange(20.0), "times_chosen": np.arange(20) % 2 * 3}
    figure = selection_panels({"hics": (5, arrays)})
    means = figure.axes[0].get_lines()[1]
    assert list(means.get_xdata()) == [2 * n + 0.5 for n in range(10)]
    assert list(means.get_ydata()) == [1.5] * 10


def test_a_line_without_a_value_at_the_smallest_number_has_no_gain(tmp_path: Path) -> None:
    for rho, value in ((1, 0.5), (2, 0.7), (3, 0.6)):
        for name in ("fedavg", "fednh"):
            own = math.nan if name == "fednh" and rho == 1 else value
            overrides = [f"algorithm={name}", f"head.rho={rho}"]
            write_run(tmp_path / f"{rho}_{name}", overrides, [{"global/accuracy": own}])
    made = Report.read(tmp_path)
    rows = made.results
    rows = rows[(rows["metric"] == "global/accuracy") & (rows["statistic"] == "final")]
    figure = hyperparameter_figure(rows, made.keys, "head.rho", "accuracy", relative=True)
    assert figure is not None
    assert figure.axes[0].get_legend_handles_labels()[1] == ["fedavg"]
