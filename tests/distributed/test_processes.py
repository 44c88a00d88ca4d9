"""Runs in two processes: the same as in one, and how they end."""

import json
import os
import pickle
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from support.federations import compose
from torch.distributed import distributed_c10d as c10d

import fedexp
from fedexp.cli.command import config_folder
from fedexp.core.messages import Tensors
from fedexp.core.reducible import Contribution
from fedexp.data.load import load_data
from fedexp.distributed.fabric import cpu_fabric, make_fabric
from fedexp.distributed.processes import _forward_signals, reason_of, spawn
from fedexp.distributed.ranks import LostRankError, first_rank_first, ranks_of
from fedexp.errors import InputError, Interrupted
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan

ROUNDS = 3
SMALL = [
    *["clients.count=6", "clients.per_round=4", "local.epochs=1", "data.subset=300"],
    *[f"rounds={ROUNDS}", "local.grad_clip=10", "+measure=step_cosine"],
]
LOOK_AHEAD = [
    "regularizer.outer_steps=2",
    "regularizer.inner_steps=2",
    "regularizer.ipc=2",
    "regularizer.image_lr=1",
]
ALL_FEW = ["clients.count=3", "clients.per_round=1"]
METHODS: dict[str, list[str]] = {
    "fedavg": ["algorithm=fedavg"],
    "fednh": ["algorithm=fednh"],
    "fedsc": ["algorithm=fedsc"],
    "fedgela": ["algorithm=fedgela"],
    "fedptr": ["algorithm=fedptr", *LOOK_AHEAD],
    "fedptr_s": ["algorithm=fedptr_s", *LOOK_AHEAD],
    "scaffold": ["algorithm=scaffold"],
    "hics": ["sampler=hics"],
    "hics in a stack": ["sampler=hics", "engine=vectorized"],
    "fednh in a stack": ["algorithm=fednh", "engine=vectorized", "engine.clients_per_chunk=2"],
    "power of choice": ["sampler=power_of_choice"],
    "divfl": ["sampler=divfl", "personalization=fedper"],
    "ditto, nothing remembered": [
        "algorithm=ditto",
        "measure.personal=null",
        "objective=train/loss",
    ],
    "moon of the cohort": ["algorithm=moon", "measure.personal.of=cohort"],
    "clustered": ["sampler=clustered", "aggregator=uniform"],
    "median": ["aggregator=median"],
    "krum": ["aggregator=krum", "clients.per_round=5"],
    "cross_round": ["aggregator=cross_round", "aggregator.warmup=0", "aggregator.memory=2"],
    "norm_clipped": ["aggregator=norm_clipped", "aggregator.norm=0.1"],
    "private": ["aggregator=private", "aggregator.noise_multiplier=0.1"],
    "best model tuned": ["personalization=finetune_best", "personalization.epochs=2"],
    "broken updates": ["faults=unreliable", "faults.nan=0.5"],
    "compressed both ways": ["compression=topk", "compression@download=powersgd"],
    "balanced by time": ["algorithm=scaffold", "engine.balance=time"],
    "more ranks than clients": [*ALL_FEW, "algorithm=scaffold"],
    "fltrust": ["aggregator=fltrust", "aggregator.samples=40"],
}
BATCH_NORM = ["model.batch_norm=true", "local.batch_size=1000"]
NEEDS = {
    "fedap": BATCH_NORM,
    "fedbn": BATCH_NORM,
    "silobn": BATCH_NORM,
    "fedcda": ["aggregator.warmup=0"],
}
NEEDS |= {"fedprox_synthetic": LOOK_AHEAD}
METHODS |= {
    path.stem: [f"algorithm={path.stem}", *NEEDS.get(path.stem, [])]
    for path in sorted((Path(config_folder()) / "algorithm").glob("*.yaml"))
    if path.stem not in METHODS
}
Outcome = tuple[list[dict[str, float]], Tensors]


def outcome(overrides: list[str], processes: int) -> Outcome:
    """The metrics of every round and the final weights."""
    config = compose(*SMALL, *overrides, "engine.device=cpu", f"engine.devices={processes}")
    planned, fabric = plan(config), make_fabric(config.engine)
    data = load_data(config, planned.source, fabric.device)
    federation = Federation(planned, fabric, data)
    metrics = [dict(federation.run_round(r).metrics) for r in range(1, ROUNDS + 1)]
    return metrics, federation.server.weights


class Watcher:
    """Shares a sum that only rank 0 has, and a list."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def contribution(self) -> Contribution:
        sums = {"both": torch.full((2, 3), self.rank + 1.0)}
        if self.rank == 0:
            sums["first"] = torch.tensor(0.1, dtype=torch.float64)
        return Contribution(sums, f"rank {self.rank}")

    def set_reduced(self, sums: Tensors, items: Any) -> None:
        self.taken = sums, items


class Nothing(Watcher):
    """Has nothing to add up."""

    def contribution(self) -> Contribution:
        return Contribution()


def unpickled(*_: object) -> None:
    raise AssertionError("a rank unpickled something")


def open_ports() -> list[str]:
    """The addresses on which this process waits for connections, as in /proc/net/tcp."""
    own = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            own.add(os.readlink(f"/proc/self/fd/{number}"))
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    lines += Path("/proc/net/tcp6").read_text().splitlines()[1:]
    found = [line.split() for line in lines]
    listening = "0A"
    return [f[1].split(":")[0] for f in found if f[3] == listening and f"socket:[{f[9]}]" in own]


def in_pair(names: Sequence[str]) -> tuple[dict[str, Outcome], dict[str, Any]]:
    """What one of two processes computes: these of METHODS, and what ranks say to each other."""
    torch.set_num_threads(1)
    pickle.loads = pickle.Unpickler = c10d._tensor_to_object = unpickled  # type: ignore[assignment,misc]
    ranks = ranks_of(make_fabric(compose("engine.device=cpu", "engine.devices=2").engine))
    watcher, nothing = Watcher(ranks.rank), Nothing(ranks.rank)
    ranks.all_reduce([watcher, nothing])
    talk = {
        "size": ranks.size,
        "gather": ranks.all_gather(torch.tensor([ranks.rank])),
        "merge": list(ranks.gather_pairs([(5 - 3 * ranks.rank, "a"), (3 - 3 * ranks.rank, "b")])),
        "collect": list(ranks.iterate_gathered(range(10 * ranks.rank, 11 * ranks.rank + 2))),
        "first": ranks.all_gather(ranks.from_first(lambda: f"of rank {ranks.rank}")),
        "taken": watcher.taken,
        "nothing": nothing.taken,
        "ports": ranks.all_gather(open_ports()),
        "folder": Path(os.environ["FEDEXP_RENDEZVOUS"]).parent.stat().st_mode,
    }
    return {name: outcome(METHODS[name], 2) for name in names}, talk


@pytest.fixture(scope="module")
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Outcome], dict[str, Any]]:
    chosen = {item.name for item in request.session.items}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDEXP_CACHE", str(tmp_path_factory.mktemp("cache")))
        names = [n for n in METHODS if f"test_two_processes_give_what_one_gives[{n}]" in chosen]
        return spawn(in_pair, 2, names)


@pytest.mark.matrix
@pytest.mark.parametrize("name", METHODS)
def test_two_processes_give_what_one_gives(name: str, pair: Any) -> None:
    metrics, weights = pair[0][name]
    expected_metrics, expected_weights = outcome(METHODS[name], 1)
    for key, value in expected_weights.items():
        torch.testing.assert_close(weights[key], value, rtol=0, atol=1e-5)
    for found, expected in zip(metrics, expected_metrics, strict=True):
        measured = {key for key in expected if not key.startswith("time/")}
        assert {key for key in found if not key.startswith("time/")} == measured
        for key in measured:
            assert found[key] == pytest.approx(expected[key], rel=1e-4, abs=1e-5), key
        assert found["time/server_s"] >= 0


def test_what_ranks_tell_each_other(pair: Any) -> None:
    talk = pair[1]
    assert talk["size"] == 2
    assert [each.item() for each in talk["gather"]] == [0, 1]
    assert talk["merge"] == [(0, "b"), (2, "a"), (3, "b"), (5, "a")]
    assert talk["collect"] == [0, 10, 1, 11, 12]
    assert talk["first"] == ["of rank 0", "of rank 0"]
    sums, items = talk["taken"]
    assert items == ["rank 0", "rank 1"]
    assert sums["both"].tolist() == [[3.0] * 3] * 2
    assert sums["first"].item() == 0.1  # float64, as it was
    assert talk["nothing"] == ({}, [None, None])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_other_user_can_join_the_ranks(pair: Any) -> None:
    """They meet in a private folder, listen on the loopback interface and unpickle nothing."""
    talk = pair[1]
    assert stat.S_IMODE(talk["folder"]) == 0o700
    assert len(talk["ports"]) == 2
    assert {address for of_rank in talk["ports"] for address in of_rank} <= {"0100007F"}


def die(how: str) -> None:
    ranks = ranks_of(make_fabric(compose("engine.device=cpu", "engine.devices=2").engine))
    if ranks.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise InputError("a=1: no") if how == "refuses" else KeyError("oops")
    ranks.all_gather(None)  # would wait for ever
    time.sleep(100)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("killed", "^rank 1 was killed by SIGKILL$"),
        ("refuses", "^a=1: no$"),
        ("fails", r"^rank 1 failed \(KeyError: 'oops'\)$"),
    ],
)
def test_a_rank_that_dies_ends_the_run_with_its_number(
    how: str,
    line: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(InputError, match=line):
        spawn(die, 2, how)
    # The other rank loses the connection: that is no news. An unexpected error has a traceback.
    assert "Traceback" not in capfd.readouterr().err
    assert caplog.text.count("Traceback") == (how == "fails")
    assert ("KeyError" in caplog.text) == (how == "fails")


@pytest.mark.slow
def test_a_run_in_two_processes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    tiny = ["rounds=2", "clients.count=4", "clients.per_round=2", "local.epochs=1"]
    quiet = ["tracking.wandb.mode=disabled", "+measure=features"]
    quiet += ["measure.features.clients=[0,1,2,3]", "measure.features.global_model=false"]
    result = fedexp.run([*tiny, *quiet, "engine.devices=2", f"hydra.run.dir={folder}"])
    alone = fedexp.run([*tiny, *quiet, f"hydra.run.dir={tmp_path / 'alone'}"])
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in (tmp_path / "alone").iterdir()
    )
    assert sorted(path.name for path in (folder / "figures").iterdir()) == sorted(
        path.name for path in (tmp_path / "alone" / "figures").iterdir()
    )
    assert result.metrics["round"].tolist() == [1, 2]
    assert result.objective("global/accuracy") == alone.objective("global/accuracy")
    images = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(result.model(images), alone.model(images), rtol=0, atol=1e-4)
    assert "Traceback" not in capfd.readouterr().err


TINY = ["clients.count=6", "clients.per_round=3", "local.epochs=1", "data.subset=300"]
QUIET = ["tracking.wandb.mode=disabled", "tracking.progress=false", "engine.device=cpu"]


@pytest.mark.slow
def test_a_warning_of_two_processes_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = [*TINY, *QUIET, "gradient=client_momentum", "optimizer=adam", "rounds=1"]
    result = fedexp.run([*words, "engine.devices=2", f"hydra.run.dir={tmp_path / 'run'}"])
    assert result.model.weights
    assert caplog.text.count("the server expects steps of SGD") == 1


@pytest.mark.slow
def test_what_two_processes_have_saved_one_or_two_go_on_with(tmp_path: Path) -> None:
    """SCAFFOLD's clients keep something, and so are at home at one of the ranks."""
    scaffold = [*TINY, *QUIET, "algorithm=scaffold"]
    whole = fedexp.run([*scaffold, "rounds=4", f"hydra.run.dir={tmp_path / 'whole'}"])
    folder = tmp_path / "halves"
    fedexp.run([*scaffold, "rounds=2", "engine.devices=2", f"hydra.run.dir={folder}"])
    clients = {path.stem for path in (folder / "checkpoints/round_0002/clients").iterdir()}
    assert len(clients) > 3  # those of both ranks
    fedexp.run([*scaffold, "rounds=3", "engine.devices=2", f"resume={folder}"])
    resumed = fedexp.run([*scaffold, "rounds=4", f"resume={folder}"])
    for name, value in whole.model.weights.items():
        torch.testing.assert_close(resumed.model.weights[name], value, rtol=0, atol=1e-5)
    for name in ("global/loss", "train/loss", "cost/upload_bytes"):
        assert resumed.metrics[name].tolist() == pytest.approx(whole.metrics[name].tolist(), 1e-4)
    personal = "personal/accuracy_local"  # of all who ever trained
    expected = pytest.approx(whole.metrics[personal].iloc[-1], 1e-4)
    assert resumed.metrics[personal].iloc[-1] == expected
    assert not list(folder.glob("clients*"))


def fail_after_a_signal(folder: Path) -> None:
    """A rank that is told to stop, and cannot save."""
    signal.signal(signal.SIGUSR2, lambda *_: None)
    (folder / f"ready_{os.environ['RANK']}").touch()
    signal.pause()
    raise InputError("the checkpoint cannot be written")


@pytest.mark.slow
def test_a_failure_after_a_signal_is_said(tmp_path: Path) -> None:
    ready = [tmp_path / f"ready_{rank}" for rank in range(2)]

    def interrupt() -> None:
        while not all(path.exists() for path in ready):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR2)

    threading.Thread(target=interrupt).start()
    with pytest.raises(InputError, match=r"^the checkpoint cannot be written$"):
        spawn(fail_after_a_signal, 2, tmp_path)


def test_only_ctrl_c_and_sigterm_count_after_the_first_signal() -> None:
    with _forward_signals([]) as received:
        for _ in range(3):
            signal.raise_signal(signal.SIGUSR2)
        assert received == [signal.SIGUSR2]
        signal.raise_signal(signal.SIGTERM)
        assert received == [signal.SIGUSR2, signal.SIGTERM]
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_an_interrupt_while_a_rank_imports(capfd: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            time.sleep(0.01)
        time.sleep(1)  # the rank's imports have begun, and are not done
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(Interrupted):
        spawn(time.sleep, 1, 600)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
def test_an_interrupt_reaches_all_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedexp.train", *TINY, *QUIET, "rounds=10000"]
    run = subprocess.Popen(
        [*command, "engine.devices=2", f"hydra.run.dir={tmp_path}"],
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "metrics.jsonl"
    while run.poll() is None and not (metrics.exists() and metrics.read_text()):
        time.sleep(0.1)
    os.killpg(run.pid, signal.SIGINT)
    said = run.communicate()[1]
    assert run.returncode == 130, said
    assert said.count("stopping when this round is done") == 1
    assert said.count("to go on") == 1
    assert "Traceback" not in said
    (saved,) = (tmp_path / "checkpoints").glob("round_*")
    assert saved.name == f"round_{len(metrics.read_text().splitlines()):04d}"


@pytest.mark.slow
def test_torchrun_starts_the_same_run(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node=2", "-m", "fedexp.train", "engine.devices=2"]
    tiny = ["rounds=2", "clients.count=4", "clients.per_round=2", "local.epochs=1"]
    options = [*tiny, "engine.device=cpu", "tracking.wandb.mode=disabled"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("outputs/*/*")
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert done.stdout.count("Everything is in") == 1
    alone = fedexp.run([*options, f"hydra.run.dir={tmp_path / 'alone'}"])
    summary = json.loads((folder / "summary.json").read_text())
    expected = pytest.approx(alone.objective("global/accuracy"), abs=1e-3)
    assert summary["metrics"]["global/accuracy"]["final"] == expected


@pytest.mark.slow
def test_a_lost_connection_does_not_hide_the_error_of_all_ranks(tmp_path: Path) -> None:
    """Each rank refuses the partition, and those that end last lose their connection."""
    options = ["partition=shards_random", "clients.count=4", "clients.per_round=2"]
    ranks = ["engine.devices=3", "engine.device=cpu", f"hydra.run.dir={tmp_path / 'run'}"]
    with pytest.raises(InputError, match=r"^partition\.classes_per_client=2 with clients\.count=4"):
        fedexp.run([*options, *ranks, "tracking.wandb.mode=disabled"])


def test_the_reason_of_a_lost_connection_is_the_error_before_it() -> None:
    def lose_the_connection() -> None:
        try:
            raise InputError("a=1: no")
        finally:
            raise RuntimeError("connection closed by peer")

    with pytest.raises(RuntimeError) as lost:
        lose_the_connection()
    assert str(reason_of(lost.value)) == "a=1: no"
    other = RuntimeError("out of memory")
    assert reason_of(other) is other


class Lonely:
    """A fabric whose other rank ends during the block."""

    global_rank = 1

    @contextmanager
    def rank_zero_first(self, local: bool) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("connection closed by peer")


@pytest.mark.parametrize("error", [InputError("a=1: no"), RuntimeError("out of memory")])
def test_a_rank_that_ends_before_the_others_does_not_hide_their_error(error: Exception) -> None:
    fabric: Any = Lonely()
    with pytest.raises(LostRankError, match="rank 1 lost the") as lost, first_rank_first(fabric):
        raise error
    is_expected = isinstance(error, InputError)
    assert reason_of(lost.value) is (error if is_expected else lost.value)


def test_an_error_of_the_block_itself_is_raised() -> None:
    error = RuntimeError("out of memory")
    with pytest.raises(RuntimeError) as raised, first_rank_first(cpu_fabric()):
        raise error
    assert raised.value is error


def test_deterministic_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # and so put back afterwards
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    before = torch.are_deterministic_algorithms_enabled()
    try:
        _, weights = outcome(["engine.deterministic=true", "algorithm=fedsc"], 1)
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        again = outcome(["engine.deterministic=true", "algorithm=fedsc"], 1)[1]
        assert all(torch.equal(weights[name], again[name]) for name in weights)
        make_fabric(compose("engine.device=cpu").engine)  # of a later run in this process
        assert not torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before)


def test_a_trainer_trains_in_one_process() -> None:
    with pytest.raises(InputError, match=r"engine\.devices=2 .*trains in one process"):
        plan(compose("engine=trainer", "engine.devices=2"))


@pytest.mark.slow
def test_a_rank_of_torchrun_that_is_killed_ends_the_others_in_one_line(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node=2", "-m", "fedexp.train", "engine.devices=2"]
    tiny = ["rounds=600", "clients.count=4", "clients.per_round=2", "local.epochs=1"]
    options = [*tiny, "engine.device=cpu", "tracking.wandb.mode=disabled", "hydra.run.dir=run"]
    slow = ["+measure.slow._target_=support.slow_rounds.SlowRounds", "+measure.slow.seconds=0.5"]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    run = subprocess.Popen(
        [*command, *options, *slow],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert run.poll() is None, run.communicate()
        time.sleep(0.1)
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True).stdout
    ranks = [
        int(pid) for pid, parent in map(str.split, table.splitlines()) if int(parent) == run.pid
    ]
    os.kill(max(ranks), signal.SIGKILL)
    said = run.communicate(timeout=120)[1]
    assert run.returncode == 1
    (line,) = (each for each in said.splitlines() if each.startswith("fedexp: rank "))
    assert re.match(r"fedexp: rank \d lost the connection to another rank: its output says", line)
    assert line.endswith("to go on, add resume=auto to the same command")
    assert "fedexp/runtime" not in said  # no traceback of fedexp
