"""The tables of time to accuracy in the results are the numbers of their CSV files."""

import pandas as pd
import pytest
from generate.results import RESULTS

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


def coordination(row: pd.Series) -> str:
    if row["coordination"] == "buffered":
        return "buffered"
    return "synchronous" if pd.isna(row["system.invite"]) else "over-selected"


@pytest.mark.parametrize("title", TABLES)
def test_a_cell_is_the_mean_over_the_seeds_of_the_file(title: str) -> None:
    file, target, seeds, form = TABLES[title]
    values = pd.read_csv(RESULTS / file, dtype={"compression": str}, keep_default_na=False)
    values = values.replace({"system.invite": {"null": None}, "value": {"": None}})
    values = values[values["statistic"] == "final"].astype({"value": float})
    values["column"] = values.apply(coordination, axis=1)
    divisors = {f"clock/time_to/{target}": 60, f"rounds_to/{target}": 1, f"bytes_to/{target}": 1e6}
    text = (RESULTS / "time.md").read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
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
