"""The table at the end of a sweep: mean and deviation over seeds for each configuration."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

_ROUNDS = "rounds_to/"


def report_sweep(folder: Path, log_name: str) -> bool:
    """Print the table over the jobs in ``folder`` and write it to ``folder/sweep.csv``.

    Args:
        folder: the sweep's folder.
        log_name: the name of a job's log file, to which a failed job is referred.

    Returns:
        Whether no job failed.
    """
    from rich.console import Console

    finals, failed = collect(folder)
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not finals.empty:
        table = aggregate(finals)
        table.to_csv(folder / "sweep.csv")
        console.print(render(table, console))
        console.print(f"Also in {folder / 'sweep.csv'}")
    for job in failed:
        console.print(f"Failed: {job}; {log_name} there says why")
    return not failed


def collect(folder: Path) -> tuple[pd.DataFrame, list[Path]]:
    """The final metrics of each job below ``folder``, and the folders of those without a summary.

    A row is a job; its index, ``configuration``, are the job's overrides without the seed, without
    ``resume`` and without those that all jobs share.
    """
    import pandas as pd
    from omegaconf import OmegaConf

    finals, configurations, failed = [], [], []
    for path in sorted(folder.glob("**/.hydra/overrides.yaml"), key=_natural):
        job = path.parent.parent
        if not (job / "summary.json").exists():
            failed.append(job)
            continue
        summary = json.loads((job / "summary.json").read_text(encoding="utf-8"))
        finals.append({name: values["final"] for name, values in summary["metrics"].items()})
        overrides = [str(override) for override in OmegaConf.load(path)]
        configurations.append(
            [each for each in overrides if not each.lstrip("+").startswith(("seed=", "resume="))]
        )
    index = pd.Index(_labels(configurations), name="configuration")
    return pd.DataFrame(finals, index=index, dtype=float), failed


def aggregate(finals: pd.DataFrame) -> pd.DataFrame:
    """``seeds``, and ``<metric>/mean`` and ``<metric>/std`` of each configuration, a row each.

    The standard deviation is that of a sample (n - 1), absent for one seed. One diverged seed (NaN)
    makes its configuration's mean NaN rather than vanish from it; so does one that never reached
    the target of ``rounds_to/<target>``, whose ``/reached`` is the number of seeds that did.
    """
    groups = finals.groupby(level="configuration", sort=False)
    table = groups.size().to_frame("seeds")
    for name in finals.columns:
        table[f"{name}/mean"] = groups[name].agg(lambda values: values.mean(skipna=False))
        table[f"{name}/std"] = groups[name].agg(lambda values: values.std(skipna=False))
        if name.startswith(_ROUNDS):
            table[f"{name}/reached"] = groups[name].count()
    return table


def render(table: pd.DataFrame, console: Console) -> Table:
    """The accuracies in ``aggregate``'s table as ``0.912 ± 0.004``, and the rounds to targets.

    As many as fit the terminal, personal ones last. Where not every seed reached the target it says
    how many did: ``2 of 3``.
    """
    metrics = [name.removesuffix("/mean") for name in table.columns if name.endswith("/mean")]
    shown = [name for name in metrics if "accuracy" in name or name.startswith(_ROUNDS)]
    shown.sort(key=lambda name: name.startswith("personal/"))
    boundless = console.options.update(width=10_000)
    for count in range(len(shown), 1, -1):
        drawn = _draw(table, shown[:count])
        if console.measure(drawn, options=boundless).maximum <= console.width:
            return drawn
    return _draw(table, shown[:1])


def _draw(table: pd.DataFrame, metrics: list[str]) -> Table:
    from rich.table import Table
    from rich.text import Text

    drawn = Table()
    drawn.add_column("configuration", overflow="fold")
    drawn.add_column("seeds")
    for name in metrics:
        drawn.add_column(name.replace("/", "\n").replace("_", "\n", 1), no_wrap=True)
    for configuration, row in table.iterrows():
        cells = [_cell(row, name) for name in metrics]
        # Text, as a list such as [0.1,1] in an override is no markup.
        drawn.add_row(Text(str(configuration)), str(int(row["seeds"])), *cells)
    return drawn


def _labels(configurations: list[list[str]]) -> list[str]:
    """What tells each configuration from the others; all of it when there is only one."""
    shared = set.intersection(*map(set, configurations)) if configurations else set()
    differing = [[each for each in overrides if each not in shared] for overrides in configurations]
    return [
        " ".join(own or overrides) or "default"
        for own, overrides in zip(differing, configurations, strict=True)
    ]


def _cell(row: pd.Series[float], name: str) -> str:
    mean, std = row[f"{name}/mean"], row[f"{name}/std"]
    digits = 1 if name.startswith(_ROUNDS) else 3
    if math.isnan(mean):
        reached = int(row.get(f"{name}/reached", 0))
        return f"{reached} of {int(row['seeds'])}" if reached else ""
    return f"{mean:.{digits}f}" if math.isnan(std) else f"{mean:.{digits}f} ± {std:.{digits}f}"


def _natural(path: Path) -> tuple[int, str]:
    """Job 2 before job 10."""
    return len(str(path)), str(path)
