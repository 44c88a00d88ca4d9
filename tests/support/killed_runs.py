"""Runs in processes of their own that may be killed at the start of a round."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import fedexp
from fedexp.runtime.federation import Federation
from support.command_line import PROCESSES


def ended(folder: Path, *overrides: str, dies_in: int = 0) -> int | None:
    """The exit code of a run in this folder; ``dies_in``: the round that kills it, if any."""
    process = PROCESSES.Process(target=_run, args=(folder, overrides, dies_in))
    process.start()
    process.join()
    return process.exitcode


def outcome(folder: Path, shown: str) -> tuple[str, list[dict[str, Any]], str]:
    """The digest of the final weights, each round's metrics, and the log of turns.

    ``shown``: the beginning of the metrics' names; empty for all but real time.
    """
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    metrics = [
        {name: v for name, v in line.items() if name.startswith(shown) and name[:5] != "time/"}
        for line in lines
    ]
    digest = json.loads((folder / "summary.json").read_text())["weights_digest"]
    return digest, metrics, (folder / "turns.csv").read_text()


def living(session: int) -> list[str]:
    """The command lines of the living processes of this session."""
    table = subprocess.run(["ps", "-eo", "sid=,stat=,args="], capture_output=True, text=True)
    rows = [row.split(maxsplit=2) for row in table.stdout.splitlines()]
    return [row[2] for row in rows if row[0] == str(session) and not row[1].startswith("Z")]


def _run(folder: Path, overrides: tuple[str, ...], dies_in: int) -> None:
    run_round = Federation.run_round

    def start(self: Federation, round: int) -> Any:
        if round == dies_in:
            signal.raise_signal(signal.SIGKILL)
        return run_round(self, round)

    Federation.run_round = start  # type: ignore[method-assign]
    fedexp.run([f"hydra.run.dir={folder}", *overrides])
