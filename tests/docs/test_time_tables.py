"""The tables of time to accuracy in the results are the numbers of their CSV files."""

from functools import cache

import pandas as pd
import pytest
from generate.results import RESULTS
from scipy import stats
from support.result_pages import one_line, rows, section

PAGE = "time.md"

METHODS = {"FedAvg": "fedavg", "FedNH": "fednh", "HiCS-FL, `scale=client`": "hics"}
COLUMNS = ["synchronous", "over-selected", "buffered"]
TABLES = {
    "Time to accuracy on digits": ("digits_asynchronous.csv", "0.9", 3, "{:.2f}, {:.1f}, {:.1f}"),
    "Time to accuracy on CIFAR-10": (
        "cifar10_asynchronous.csv",
        "0.35",
        1,
        "{:.2f}, {:.0f}, {:.0f}",
    ),
}
DIGITS, CIFAR = TABLES
TIME, ROUNDS, BYTES = "clock/time_to/{}", "rounds_to/{}", "bytes_to/{}"
OORT = {
    "cheap phones": ("cheap phones", "invitations of cheap"),
    "common phones": ("common phones", "invitations of common"),
    "fast phones": ("fast phones", "invitations of fast"),
    "invitations of old phones": ("old phones", "invitations of old"),
}
MEASURED = {
    "to clients whose updates were never merged": ("to clients never merged", 0),
    "most to one of these clients": ("most to one of them", 0),
    "simulated seconds to accuracy 0.8": ("time_to/0.8", 1),
    "simulated seconds to accuracy 0.9": ("time_to/0.9", 1),
    "simulated seconds of 60 rounds": ("seconds", 1),
    "accuracy, mean of the last five rounds": ("accuracy", 3),
}
CELLS = [
    (oort, limit)
    for limit in ("system.invite=13", "system.deadline=0.5")
    for oort in ("before", "after")
]
LEFT_OUT = "Oort and clients that are left out"


def coordination(row: pd.Series) -> str:
    if row["coordination"] == "buffered":
        return "buffered"
    return "synchronous" if pd.isna(row["system.invite"]) else "over-selected"


@cache
def finals(file: str) -> pd.DataFrame:
    values = pd.read_csv(RESULTS / file, dtype={"compression": str}, keep_default_na=False)
    values = values.replace({"system.invite": {"null": None}, "value": {"": None}})
    values = values[values["statistic"] == "final"].astype({"value": float})
    values["column"] = values.apply(coordination, axis=1)
    return values


@pytest.mark.parametrize("title", TABLES)
def test_a_cell_is_the_mean_over_the_seeds_of_the_file(title: str) -> None:
    file, target, seeds, form = TABLES[title]
    values = finals(file)
    divisors = {f"clock/time_to/{target}": 60, f"rounds_to/{target}": 1, f"bytes_to/{target}": 1e6}
    text = section(PAGE, title)
    for name, algorithm in METHODS.items():
        for compression in ("none", "topk", "qsgd"):
            cells = []
            for column in COLUMNS:
                cell = values[
                    (values["algorithm"] == algorithm)
                    & (values["compression"] == compression)
                    & (values["column"] == column)
                ]
                assert cell["seed"].nunique() == seeds
                means = [
                    cell.loc[cell["metric"] == metric, "value"].mean() / divisor
                    for metric, divisor in divisors.items()
                ]
                cells.append("not reached" if pd.isna(means[1]) else form.format(*means))
            assert f"| {name} | `{compression}` | {' | '.join(cells)} |" in text


def means(title: str, metric: str) -> pd.DataFrame:
    """(Method, compression) by coordination: the mean over the seeds; none if it never was."""
    file, target, *_ = TABLES[title]
    values = finals(file)
    own = values[values["metric"] == metric.format(target)]
    keys = ["algorithm", "compression", "column"]
    return own.groupby(keys)["value"].mean().unstack("column")


def over_none(title: str, metric: str, compression: str) -> pd.DataFrame:
    """A compression's means over those of ``none``."""
    found = means(title, metric)
    return found.xs(compression, level=1) / found.xs("none", level=1)


def test_the_buffer_is_fastest_on_digits_in_every_row() -> None:
    seconds = means(DIGITS, TIME)
    assert "the buffer is fastest in every row, about four times" in one_line(PAGE, DIGITS)
    assert (seconds.idxmin(axis=1) == "buffered").all()
    assert (seconds["synchronous"] / seconds["buffered"]).between(3.5, 5).all()


def test_over_selection_on_digits_takes_less_time_and_sends_more() -> None:
    seconds, sent = means(DIGITS, TIME), means(DIGITS, BYTES)
    share = seconds["over-selected"] / seconds["synchronous"]
    hics = share["hics"]
    said = (
        "Over-selection takes less than half of the time for FedAvg and FedNH and "
        f"{hics.min():.1f} to {hics.max():.2f} of it for HiCS-FL, and sends more"
    )
    assert said in one_line(PAGE, DIGITS)
    assert (share[["fedavg", "fednh"]] < 0.5).all()
    assert (sent["over-selected"] > sent["synchronous"]).all()


def test_what_compression_costs_and_saves_on_digits() -> None:
    text = one_line(PAGE, DIGITS)
    assert "`qsgd` needs the same rounds within 20 % and 0.55 to 0.7 of the bytes." in text
    assert over_none(DIGITS, ROUNDS, "qsgd").stack().between(0.8, 1.2).all()
    shares = over_none(DIGITS, BYTES, "qsgd").stack()
    assert (round(shares.min(), 2), round(shares.max(), 1)) == (0.55, 0.7)
    longer = over_none(DIGITS, ROUNDS, "topk").stack()
    said = f"`topk` at 1 % needs {longer.min():.1f} to {longer.max():.1f} times the rounds."
    assert said in text
    assert "except for FedNH without over-selection. Time is not saved" in text
    less = over_none(DIGITS, BYTES, "topk").stack() < 1
    assert set(less.index[less]) == {("fednh", "synchronous"), ("fednh", "buffered")}
    assert (over_none(DIGITS, TIME, "topk") > 1).all(axis=None)


def test_uploads_of_topk_are_what_its_downloads_leave() -> None:
    """Without compression half of the bytes go down, and downloads are never compressed."""
    number, sent = (means(DIGITS, each)["synchronous"]["fedavg"] for each in (ROUNDS, BYTES))
    download = sent["none"] / 2 / number["none"]
    upload = sent["topk"] - number["topk"] * download
    said = f"(FedAvg, synchronous: {upload / 1e6:.2f} MB in place of {sent['none'] / 2e6:.1f})"
    assert said in one_line(PAGE, DIGITS)


def test_how_accurate_the_runs_on_digits_end() -> None:
    values = finals("digits_asynchronous.csv")
    reached = values[values["metric"] == "rounds_to/0.9"]["value"]
    accuracies = means(DIGITS, "global/accuracy")
    cells = accuracies.stack()
    lower = (accuracies.xs("none", level=1) - accuracies.xs("topk", level=1)).max(axis=None)
    assert reached.notna().all()
    said = (
        f"All {len(reached)} runs reach the target. The mean final accuracies are "
        f"{cells.min():.3f} to {cells.max():.3f}, with `topk` up to {lower:.3f} lower"
    )
    assert said in one_line(PAGE, DIGITS)


def test_what_the_buffer_gains_on_cifar10() -> None:
    seconds = means(CIFAR, TIME)
    text = one_line(PAGE, CIFAR)
    faster = (seconds["synchronous"] / seconds["buffered"]).dropna()
    assert set(faster.index.get_level_values(0)) == {"fedavg", "hics"}
    often = f"{faster.min():.1f} to {faster.max():.1f} times as fast as synchronous rounds"
    assert f"The buffer is {often} for FedAvg and" in text
    assert not (seconds["buffered"] < seconds["over-selected"]).loc[["fedavg", "hics"]].all()
    qsgd = over_none(CIFAR, TIME, "qsgd").stack().dropna()
    assert "`qsgd` is faster than `none` in each row that reaches the target" in text
    assert (len(qsgd), (qsgd < 1).all()) == (8, True)


def test_how_accurate_the_buffer_ends_on_cifar10() -> None:
    accuracies = means(CIFAR, "global/accuracy")
    buffered = accuracies["buffered"]
    text = one_line(PAGE, CIFAR)
    found = text.partition("is lower: ")[2].partition(" for FedAvg without compression")[0]
    plain = accuracies.loc["fedavg", "none"]
    # The file has four decimals, and 0.4275 may be rounded to either side.
    assert [float(each) for each in found.split(" in place of ")] == pytest.approx(
        plain[["buffered", "synchronous"]].tolist(), abs=5.1e-4
    )
    own = buffered["fednh"]
    assert f"it ends at {own.min():.3f} to {own.max():.3f}, and" in text


@cache
def oort() -> pd.DataFrame:
    return pd.read_csv(RESULTS / "digits_oort.csv").set_index(["oort", "limit", "seed"])


def table_of_oort() -> dict[str, list[str]]:
    header = "| | over-selection, before | after | deadline, before | after |"
    return rows(section(PAGE, LEFT_OUT), header)


def spread(column: str, digits: int) -> list[str]:
    """Mean ± standard deviation in each column of the table."""
    values = [oort().loc[cell, column] for cell in CELLS]
    assert [len(each) for each in values] == [5] * 4
    return [f"{each.mean():.{digits}f} ± {each.std():.{digits}f}" for each in values]


@pytest.mark.parametrize("name", OORT)
def test_the_invitations_of_phones_are_those_of_the_file(name: str) -> None:
    phones, invitations = OORT[name]
    owned = oort()[phones].mean()
    of_all = " of 40 clients" if phones == "old phones" else ""
    assert table_of_oort()[f"{name} ({owned:.1f}{of_all})"] == spread(invitations, 0)


@pytest.mark.parametrize("name", MEASURED)
def test_a_row_of_oort_is_that_of_the_file(name: str) -> None:
    assert table_of_oort()[name] == spread(*MEASURED[name])


def test_the_table_of_oort_has_no_other_rows_and_all_invitations() -> None:
    found = table_of_oort()
    assert len(found) == len(OORT) + len(MEASURED) + 1
    for cell, shown in zip(CELLS, found["all invitations"], strict=True):
        assert set(oort().loc[cell, "invitations"]) == {int(shown)}


def test_what_oort_gains_seed_by_seed() -> None:
    def change(limit: str, column: str, form: str) -> str:
        gains = oort().loc[("after", limit), column] - oort().loc[("before", limit), column]
        half = stats.t.ppf(0.975, len(gains) - 1) * stats.sem(gains)
        mean = gains.mean() if column == "accuracy" else -gains.mean()
        return form.format(mean, half)

    late, surplus = "system.deadline=0.5", "system.invite=13"
    seconds, accuracy = ("time_to/0.9", "{:.1f} ± {:.1f}"), ("accuracy", "{:+.3f} ± {:.3f}")
    text = one_line(PAGE, LEFT_OUT)
    assert (
        f"under the deadline accuracy 0.9 comes {change(late, *seconds)} simulated seconds "
        f"earlier, and the last five rounds differ by {change(late, *accuracy)}. With "
        f"over-selection it comes {change(surplus, *seconds)} seconds earlier, and the last five "
        f"rounds differ by {change(surplus, *accuracy)}"
    ) in text
