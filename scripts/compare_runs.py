"""Compares finished runs: a Markdown table, their curves as a picture, all numbers as JSON.

    python scripts/compare_runs.py FOLDER ... [--name scripts/results/NAME] [--columns METRIC ...]

Each FOLDER is a run or a sweep. The table has a row for each run, labelled by the overrides in
which the runs differ; with ``--last5`` its values are means over the last five rounds. NAME.json
has each run's overrides, seed, metrics and accuracy curve; NAME.png has the curves.
"""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd

CURVE = "global/accuracy"
IGNORED = ("tracking.", "data.root=", "hydra")
"""Prefixes of overrides that change no result."""


def read(run: Path) -> dict[str, Any]:
    """Overrides, metrics and accuracy curve of one run."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    rounds = pd.read_json(run / "metrics.jsonl", lines=True).set_index("round")
    curve = rounds[CURVE].dropna()
    return {
        "overrides": [o for o in summary["overrides"] if not o.startswith(IGNORED)],
        "seed": summary["seed"],
        "rounds": summary["rounds"],
        "wall_time_s": round(summary["wall_time_s"]),
        "device": summary["device"],
        "versions": summary["versions"],
        "metrics": summary["metrics"],
        "curve": {"round": curve.index.tolist(), CURVE: curve.round(4).tolist()},
    }


def label_of(run: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    """The overrides that not all runs share, without those of ``engine``."""
    shared = set.intersection(*(set(each["overrides"]) for each in runs))
    own = [o for o in run["overrides"] if o not in shared and not o.startswith("engine")]
    return " ".join(own) or "one run"


def table(runs: list[dict[str, Any]], columns: list[str], statistic: str) -> str:
    """A Markdown table; without ``columns`` it has every metric of any run."""
    names = columns or list(dict.fromkeys(n for run in runs for n in run["metrics"]))
    lines = ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for run in runs:
        values = [run["metrics"].get(name, {}) for name in names]
        cells = (_cell(each.get(statistic, each.get("final"))) for each in values)
        lines.append(f"| `{label_of(run, runs)}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def short_labels(runs: list[dict[str, Any]]) -> list[str]:
    """The shortest of three kinds of labels that are distinct.

    The first choice of a config group, such as the algorithm; all choices; all overrides.
    """
    overrides = [label_of(run, runs).split(" ") for run in runs]
    choices = [[each for each in own if "." not in each.partition("=")[0]] for own in overrides]
    for shown in ([own[:1] for own in choices], choices):
        labels = [" ".join(each.partition("=")[2] for each in own) for own in shown]
        if len(set(labels)) == len(runs):
            return labels
    return [" ".join(own) for own in overrides]


def draw(runs: list[dict[str, Any]], path: Path) -> None:
    """Accuracy against the round, one line for each run."""
    figure, axes = plt.subplots(figsize=(6.4, 4.4), layout="constrained")
    for run, label in zip(runs, short_labels(runs), strict=True):
        axes.plot(run["curve"]["round"], run["curve"][CURVE], marker=".", label=label)
    axes.set(xlabel="round", ylabel="accuracy of the global model")
    axes.grid(alpha=0.3)
    figure.legend(frameon=False, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Print the table; with ``--name``, write the numbers and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--name", type=Path)
    parser.add_argument("--columns", nargs="*", default=[])
    parser.add_argument("--last5", action="store_true")
    options = parser.parse_args()
    found = [path.parent for folder in options.folders for path in folder.rglob("summary.json")]
    runs = [read(run) for run in sorted(found)]
    print(table(runs, options.columns, "mean_last5" if options.last5 else "final"))
    if options.name:
        content = json.dumps(runs, indent=1)
        # Each curve on one line.
        content = re.sub(r"\[\s+([^][]*?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", content)
        options.name.with_suffix(".json").write_text(content + "\n", encoding="utf-8")
        draw(runs, options.name.with_suffix(".png"))


if __name__ == "__main__":
    main()
