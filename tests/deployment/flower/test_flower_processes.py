"""One SuperLink and four SuperNodes, each a process of its own."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_grid import DIGITS, FAST, FakeGrid, bundle, run

import fedexp
from fedexp.state.run_folder import read_summary

BIN = Path(sys.executable).parent
METHODS = {
    **{name: [f"algorithm={name}"] for name in ("fedavg", "fednh", "fedgela", "fedsc", "scaffold")},
    "fedptr": ["algorithm=fedptr", *FAST["fedptr"]],
    "hics": ["algorithm=hics"],
}
WORDS = ["algorithm=scaffold", "measure.personal=null", "clients.per_round=4"]
_S = 600
"""Longest wait for anything, in seconds."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Federation:
    """The processes of a federation on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        home = folder / "flwr"
        home.mkdir()
        here = f'[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n{here}')
        self.environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(fedexp.__file__).parents[1]),
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        flags = ["--insecure", "--port", str(self.port)]
        self.start("flower-superlink", *flags, "--disable-runtime-dependency-installation")
        self.wait(lambda: self.answers())
        self.nodes = [self.start_node(client) for client in range(4)]

    def start(self, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{command}.{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(BIN / command), *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def start_node(self, client: int) -> subprocess.Popen[bytes]:
        config = f"partition-id={client} state='{self.folder}/states/{client}'"
        where = ["--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        return self.start("flower-supernode", "--insecure", *where, "--node-config", config)

    def answers(self) -> bool:
        with socket.socket() as tried:
            return tried.connect_ex(("127.0.0.1", self.port)) == 0

    def wait(self, done, process: subprocess.Popen[bytes] | None = None) -> None:
        end = time.monotonic() + _S
        while not done():
            assert time.monotonic() < end, "waited too long"
            assert process is None or process.poll() is None or done()
            time.sleep(0.2)

    def run(self, app: Path, runs: Path, *settings: str) -> subprocess.Popen[bytes]:
        config = " ".join([f"folder='{runs}'", *settings])
        return self.start("flwr", "run", str(app), "here", "--stream", "--run-config", config)

    def log(self, command: str) -> str:
        logs = sorted(self.folder.glob(f"{command}.*.log"))
        return "".join(each.read_text(errors="replace") for each in logs)

    def close(self) -> None:
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
        for process in self.processes:
            process.wait(60)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    yield made
    made.close()


def summary(runs: Path) -> dict:
    (folder,) = runs.glob("*/*")
    return read_summary(folder) or {}


@pytest.mark.slow
def test_four_processes_equal_the_simulator(federation: Federation, tmp_path: Path) -> None:
    for name, method in METHODS.items():
        words, folder = [*method, "measure.personal=null", "rounds=2"], tmp_path / name
        module = bundle(folder, *words)
        federation.run(module.parent, folder / "runs").wait(_S)
        simulated = fedexp.run([*DIGITS, *words, f"hydra.run.dir={folder}/simulated"])
        assert summary(folder / "runs")["weights_digest"] == simulated.summary["weights_digest"]


@pytest.mark.slow
def test_a_killed_node_that_is_started_again_takes_part(
    federation: Federation, tmp_path: Path
) -> None:
    """The result is that of a run in which its client drops out of the rounds that it missed."""
    module = bundle(tmp_path, *WORDS)
    command = federation.run(module.parent, tmp_path / "runs")
    states = tmp_path / "states"
    federation.wait(lambda: len(list(states.glob("*/*/*/round_000001.pt"))) == 4, command)
    killed = federation.nodes[1]
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    federation.start_node(1)
    command.wait(_S)
    said = federation.log("flwr")
    missed = {int(round) for round in re.findall(r"round (\d+): client 1 .*dropped out", said)}
    assert "counts as dropped out" not in re.sub(r".*client 1 .*", "", said)
    assert said.count("client 1 is on node") == 2
    grid = FakeGrid(module, tmp_path / "fake states")
    grid.absent = lambda kind, round, client: kind == "train" and client == 1 and round in missed
    expected = run(grid, tmp_path / "expected").summary["weights_digest"]
    assert summary(tmp_path / "runs")["weights_digest"] == expected
