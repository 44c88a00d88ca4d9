"""Whom Oort invites with system=phones, and how long a target accuracy takes.

    python scripts/papers/oort_invitations.py before=SWEEP after=SWEEP --to FILE.csv

Each SWEEP is the folder of a fedexp sweep with sampler=oort and system=phones, with the name that
its rows get in the table. A row of the table is a run. It counts the invitations to each class of
phones (the first word of the name of a device: old, cheap, common, fast), and to the clients whose
update was never merged.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedexp.system.table import PROFILES, Table

DEVICE = ["upload", "latency"]
"""Columns whose values identify a device in the table of phones."""
KINDS = ("old", "cheap", "common", "fast")


def kinds_of_phones(num_clients: int, seed: int) -> pd.Series:
    """The class of each client's phone, by the client's number."""
    ones = np.ones(num_clients)
    devices = Table("phones").draw(num_clients, seed, flops_of_sample=lambda: ones)
    profile = pd.read_csv(PROFILES / "phones.csv", comment="#").set_index(DEVICE)["name"]
    pairs = zip(devices.upload, devices.latency, strict=True)
    return pd.Series([profile[pair].split()[0] for pair in pairs])


def invitations(turns: pd.DataFrame, kinds: pd.Series) -> dict[str, int]:
    """The numbers of a run's invitations.

    Args:
        turns: the run's ``turns.csv``, with a row for each invitation.
        kinds: the class of each client's phone.
    """
    invited = turns.groupby("client").size()
    sent = turns[turns["outcome"] == "sent"].groupby("client").size()
    unmerged = invited.drop(sent.index)
    by_kind = invited.groupby(kinds[invited.index].to_numpy()).sum()
    return {
        **{f"{kind} phones": int((kinds == kind).sum()) for kind in KINDS},
        **{f"invitations of {kind}": int(by_kind.get(kind, 0)) for kind in KINDS},
        "invitations": int(invited.sum()),
        "to clients never merged": int(unmerged.sum()),
        "most to one of them": int(unmerged.max()) if len(unmerged) else 0,
    }


def row(folder: Path) -> dict[str, Any]:
    """The row of one run: its limit, its seed, its invitations and its clock."""
    summary = json.loads((folder / "summary.json").read_text())
    typed = dict(each.split("=", 1) for each in summary["overrides"])
    kinds = kinds_of_phones(int(typed["clients.count"]), summary["seed"])
    metrics = summary["metrics"]
    times = {n.replace("clock/", ""): m["final"] for n, m in metrics.items() if "time_to" in n}
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    return {
        "limit": next(f"{key}={typed[key]}" for key in typed if key.startswith("system.")),
        "seed": summary["seed"],
        **invitations(pd.read_csv(folder / "turns.csv"), kinds),
        **times,
        "seconds": last["clock/seconds"],
        "accuracy": metrics["global/accuracy"]["mean_last5"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sweeps", nargs="+", metavar="NAME=SWEEP")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE.csv")
    asked = parser.parse_args()
    rows = []
    for name, sweep in (each.split("=", 1) for each in asked.sweeps):
        folders = sorted(path.parent for path in Path(sweep).glob("*/summary.json"))
        rows += [{"oort": name, **row(folder)} for folder in folders]
    table = pd.DataFrame(rows)
    table.to_csv(asked.to, index=False, float_format="%.5g")
    means = table.drop(columns="seed").groupby(["limit", "oort"], sort=False)
    print(means.agg(["mean", "std"]).round(3).T.to_string())


if __name__ == "__main__":
    main()
