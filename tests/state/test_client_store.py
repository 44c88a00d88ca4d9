"""The clients' states: what goes to disk and when, and that nothing can tell that it did."""

import gc
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from support.federations import compose, federate, timeless
from support.full_disk import files_up_to
from support.partner_options import PARTNERS

import fedexp
from fedexp.cli.command import config_folder
from fedexp.errors import InputError
from fedexp.measures.scoring.scoring import Scoring
from fedexp.regularizers.proximal import Proximal
from fedexp.runtime.federation import Federation
from fedexp.state.client_state import ClientState
from fedexp.state.client_store import ClientStore, Remember
from fedexp.state.ram_and_disk import RamAndDisk, storage_bytes

UNBOUNDED = float("inf")
CLIENT_SIDE = [
    f"{group}={path.stem}"
    for group in ("head", "loss", "regularizer", "gradient", "personalization")
    for path in sorted(Path(config_folder(), group).glob("*.yaml"))
]
DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


def remember(store: ClientStore, client: int, numbers: int = 100, part: str = "head") -> None:
    """A turn after which the client remembers ``numbers`` float32, each its own number."""
    with store.open(client) as state:
        state.memory(part)["x"] = torch.full((numbers,), float(client))


def on_disk(folder: Path) -> set[int]:
    return {int(path.stem) for path in folder.glob("*.pt")}


def same(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equal bit for bit, NaN to NaN."""
    bits = [each.contiguous().reshape(-1).view(torch.uint8) for each in (left, right)]
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(*bits)


@pytest.mark.parametrize("ram_bytes", [UNBOUNDED, 0])
def test_a_state_that_is_taken_is_no_longer_here(ram_bytes: float, tmp_path: Path) -> None:
    store = ClientStore("all", ram_bytes, tmp_path)
    remember(store, 3)
    assert same(store.take(3).memory("head")["x"], torch.full((100,), 3.0))
    assert not store.clients_with_state
    assert not on_disk(tmp_path)
    assert store.take(3) == ClientState()


def test_the_least_recently_used_go_to_disk(tmp_path: Path) -> None:
    store = ClientStore("off", 800, tmp_path)  # room for two of 400 bytes
    found = []
    for client in (0, 1, 2, 1, 0, 3, 3, 2):
        remember(store, client)
        found.append(on_disk(tmp_path))
    # RAM, oldest first:    0    01     12   21   10   03      03      32
    assert found == [set(), set(), {0}, {0}, {2}, {1, 2}, {1, 2}, {0, 1}]


def test_reading_moves_nothing(tmp_path: Path) -> None:
    store = ClientStore("off", 800, tmp_path)
    for client in (0, 1, 2):
        remember(store, client)
    for client in (0, 1, 0, 1, 1):
        assert store.memory(client, "head")["x"][0] == client
    assert on_disk(tmp_path) == {0}
    remember(store, 3)  # reading 1 did not make it younger than 2
    assert on_disk(tmp_path) == {0, 1}


@pytest.mark.parametrize(("bound", "spilled"), [(400, set()), (399, {7}), (0, {7})])
def test_the_bound_is_inclusive_and_holds_for_a_single_drawer(
    bound: float, spilled: set[int], tmp_path: Path
) -> None:
    store = ClientStore("off", bound, tmp_path)
    remember(store, 7)
    assert on_disk(tmp_path) == spilled


def test_a_drawer_that_grows_is_measured_again(tmp_path: Path) -> None:
    store = ClientStore("off", 800, tmp_path)
    remember(store, 0)
    remember(store, 1)
    remember(store, 1, numbers=101)
    assert on_disk(tmp_path) == {0}
    remember(store, 1, numbers=50)
    remember(store, 0, numbers=150)  # 200 + 600 bytes
    assert on_disk(tmp_path) == set()


def test_bytes_are_those_of_storages_each_counted_once() -> None:
    whole = torch.zeros(10, dtype=torch.int64)
    state = ClientState(
        {"loss": {"whole": whole, "view": whole[2:4], "half": torch.zeros(3, dtype=torch.half)}},
        personal_model={"w": whole.reshape(2, 5)},
    )
    assert storage_bytes(vars(state)) == 80 + 6
    view = ClientState({"loss": {"view": torch.zeros(10)[:1]}})
    assert storage_bytes(vars(view)) == 40
    assert storage_bytes(vars(ClientState())) == 0


def test_open_drawers_stay_and_come_on_top_of_the_bound(tmp_path: Path) -> None:
    store = ClientStore("off", 400, tmp_path)
    with ExitStack() as turns:
        memories = [turns.enter_context(store.open(c)).memory("head") for c in (0, 1, 2)]
        remember(store, 3)
        assert on_disk(tmp_path) == set()
        for client, memory in enumerate(memories):
            memory["x"] = torch.full((100,), float(client))
    # turns end in reverse order: 2, 1, 0
    assert on_disk(tmp_path) == {1, 2, 3}
    assert [store.memory(client, "head")["x"][0].item() for client in range(4)] == [0, 1, 2, 3]


def test_a_client_has_one_turn_at_a_time() -> None:
    store = ClientStore("off", 0)
    with store.open(3), pytest.raises(RuntimeError, match="client 3 is open"), store.open(3):
        pass


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(0)
    bits = torch.randint(0, 256, (5 * 3 * 16,), dtype=torch.uint8, generator=draw)
    matrix = (bits % 2).bool() if dtype == torch.bool else bits.view(dtype)
    sent = {
        "matrix": matrix.reshape(5, -1).clone(),
        "scalar": torch.tensor(1).to(dtype),
        "empty": torch.empty(0, 4, dtype=dtype),
    }
    store = ClientStore("all", 0, tmp_path)
    with store.open(0) as state:
        state.memory("loss").update(sent)
        state.private, state.personal_model = dict(sent), dict(sent)
    assert on_disk(tmp_path) == {0}
    private = store.private(0)
    assert private is not None
    for found in (store.memory(0, "loss"), private, store.model(0)):
        assert found.keys() == sent.keys()
        assert all(same(found[name], value) for name, value in sent.items())


def test_special_values_strides_and_sharing_come_back(tmp_path: Path) -> None:
    special = torch.tensor([float("nan"), float("-inf"), -0.0, 1e-45])
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    store = ClientStore("all", 0, tmp_path)
    with store.open(0) as state:
        state.memory("loss")["special"] = special
        state.personal_model = {"images": images}
        state.private = state.personal_model
    with store.open(0) as state:
        assert same(state.memory("loss")["special"], special)
        assert state.personal_model["images"].stride() == images.stride()
        assert state.private["images"].data_ptr() == state.personal_model["images"].data_ptr()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_device_comes_back(tmp_path: Path) -> None:
    store = ClientStore("off", 0, tmp_path)
    with store.open(0) as state:
        state.memory("loss")["x"] = torch.arange(3, device="cuda")
    found = store.memory(0, "loss")["x"]
    assert found.device.type == "cuda"
    assert found.tolist() == [0, 1, 2]


@pytest.mark.parametrize("bound", [0, UNBOUNDED])
def test_all_that_a_turn_does_to_a_memory_is_kept(bound: float) -> None:
    store = ClientStore("off", bound)
    with store.open(0) as state:
        memory = state.memory("loss")
        memory.update(visits=torch.zeros((), dtype=torch.int64), gone=torch.ones(2))
    with store.open(0) as state:
        memory = store.memory(0, "loss")
        assert memory is state.memory("loss")
        memory["visits"] += 1
        memory["visits"].add_(1)
        memory["new"] = torch.ones(3)
        del memory["gone"]
    found = store.memory(0, "loss")
    assert found.keys() == {"visits", "new"}
    assert found["visits"] == 2
    found["late"] = torch.ones(1)  # not a turn
    assert store.memory(0, "loss").keys() == {"visits", "new"}


@pytest.mark.parametrize("bound", [0, UNBOUNDED])
def test_a_turn_that_fails_leaves_the_drawer_in_the_store(bound: float) -> None:
    store = ClientStore("off", bound)
    remember(store, 0)
    with pytest.raises(ZeroDivisionError), store.open(0):
        _ = 1 / 0
    assert store.memory(0, "head")["x"][0] == 0


@pytest.mark.parametrize("bound", [0, 1000, UNBOUNDED])
@pytest.mark.parametrize(
    ("policy", "expected"), [("all", {0: 1.0, 1: 2.0, 2: 2.0}), ("cohort", {1: 2.0, 2: 2.0})]
)
def test_whose_latest_model_is_remembered(
    policy: Remember, expected: dict[int, float], bound: float
) -> None:
    store = ClientStore(policy, bound)
    for round, cohort in ((1, (0, 1)), (2, (1, 2))):
        store.begin_round()
        for client in cohort:
            with store.open(client) as state:
                state.personal_model = {"w": torch.full((100,), float(round))}
                state.memory("head")["x"] = torch.full((10,), float(client))
    assert store.clients_with_model == list(expected)
    assert {client: store.model(client)["w"][0].item() for client in expected} == expected
    assert [store.memory(client, "head")["x"][0] for client in range(3)] == [0, 1, 2]
    for stranger in {0, 1, 2, 3} - expected.keys():
        with pytest.raises(KeyError):
            store.model(stranger)


def test_models_forgotten_make_room_for_others(tmp_path: Path) -> None:
    store = ClientStore("cohort", 800, tmp_path)
    for cohort in ((0, 1), (2, 3)):
        store.begin_round()
        for client in cohort:
            with store.open(client) as state:
                state.personal_model = {"w": torch.zeros(100)}
    assert on_disk(tmp_path) == set()


def test_a_spilled_model_that_was_forgotten_is_not_found_in_the_next_turn(tmp_path: Path) -> None:
    store = ClientStore("cohort", 0, tmp_path)
    with store.open(0) as state:
        state.personal_model = {"w": torch.zeros(100)}
    store.begin_round()
    with store.open(0) as state:
        assert state.personal_model == {}
    assert store.clients_with_model == []


def test_models_that_nobody_wants_are_not_kept() -> None:
    store = ClientStore("off", UNBOUNDED)
    with store.open(0) as state:
        state.personal_model = {"w": torch.zeros(100)}
        state.private = {"b": torch.ones(2)}
    assert store.clients_with_model == []
    assert store.private(0) == state.private
    assert storage_bytes(vars(state)) == 8


def test_clients_without_anything() -> None:
    store = ClientStore("all", 0)
    assert store.memory(5, "head") == {}
    assert store.private(5) is None
    with store.open(5) as state:
        state.memory("head")
    assert store.private(5) is None
    assert store.clients_with_model == list(store.memories("head")) == []


def test_memories_are_listed_without_reading_and_read_one_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    store = ClientStore("off", 0, folder)
    remember(store, 2)
    remember(store, 0)
    remember(store, 1, part="loss")
    memories = store.memories("head")
    assert memories[2]["x"][0] == 2
    (folder / "2.pt").unlink()
    assert (list(memories), len(memories)) == ([0, 2], 2)
    assert memories[0]["x"][0] == 0
    with pytest.raises(KeyError):
        memories[1]
    with pytest.raises(InputError, match=r"/2\.pt"):
        memories[2]


@pytest.mark.parametrize("bound", [0, 1000, UNBOUNDED])
def test_everything_can_move_to_another_store(bound: float) -> None:
    store, other = ClientStore("all", bound), ClientStore("all", UNBOUNDED)
    for client in (3, 0, 5):
        remember(store, client)
        with store.open(client) as state:
            state.personal_model = {"w": torch.full((100,), client + 0.5)}
            state.private = {"w": state.personal_model["w"]} if client else {}
    for client, state in store.states():
        other.put(client, state)
    assert other.clients_with_model == [0, 3, 5]
    assert list(other.memories("head")) == [0, 3, 5]
    assert other.private(0) is None
    private = other.private(5)
    assert private is not None
    assert private["w"][0] == other.model(5)["w"][0] == 5.5


@pytest.mark.parametrize("bound", [0, 700, 2000])
def test_a_long_life_against_plain_dictionaries(bound: float) -> None:
    """Random turns, sizes, models forgotten and read: the bound shows nowhere."""
    draw = torch.Generator().manual_seed(0)

    def number(below: int) -> int:
        return int(torch.randint(below, (1,), generator=draw))

    store = ClientStore("cohort", bound)
    memory: dict[int, torch.Tensor] = {}
    models: dict[int, torch.Tensor] = {}
    for step in range(300):
        client = number(8)
        if number(10) == 0:
            store.begin_round()
            models.clear()
        if number(2):
            with store.open(client) as state:
                value = torch.full((1 + number(60),), float(step))
                state.memory("head")["x"], memory[client] = value, value.clone()
                if number(2):
                    state.personal_model, models[client] = {"w": value + 1}, value + 1
        assert store.clients_with_model == sorted(models)
        assert sorted(store.memories("head")) == sorted(memory)
        if client in memory:
            assert torch.equal(store.memory(client, "head")["x"], memory[client])
        if client in models:
            assert torch.equal(store.model(client)["w"], models[client])


def test_freed_memory_goes_back_to_the_system_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr("fedexp.state.ram_and_disk._TRIM_EVERY", 1200)
    monkeypatch.setattr(
        "fedexp.state.ram_and_disk._return_freed_memory", lambda: calls.append(client)
    )
    store = ClientStore("off", 0)
    for client in range(7):  # 400 bytes each
        remember(store, client)
    assert calls == [2, 5]


def test_the_folder_is_made_when_needed_and_goes_with_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "clients"
    store = ClientStore("off", 400, folder)
    remember(store, 0)
    assert not folder.exists()
    remember(store, 1)
    assert on_disk(folder) == {0}
    store.close()
    assert not folder.exists()
    remember(store, 0)
    remember(store, 1)
    assert on_disk(folder) == {0}
    del store
    gc.collect()
    assert not folder.exists()


def test_a_closed_store_leaves_its_successors_folder_alone(tmp_path: Path) -> None:
    first, second = (ClientStore("off", 0, tmp_path / "clients") for _ in range(2))
    remember(first, 0)
    first.close()
    remember(second, 1)
    del first
    gc.collect()
    assert on_disk(tmp_path / "clients") == {1}


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path) -> None:
    store = ClientStore("off", 8000, tmp_path)
    remember(store, 0, numbers=2000)
    with files_up_to(4096), pytest.raises(InputError) as caught:
        remember(store, 1)
    message = str(caught.value)
    assert message.startswith(
        f"clients.ram_gib: the rest is in {tmp_path}, where an access failed "
    )
    assert "\n" not in message
    assert list(tmp_path.iterdir()) == []  # no half of a file
    assert [store.memory(client, "head")["x"][0] for client in (0, 1)] == [0, 1]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = ClientStore("off", 0, tmp_path / "file" / "clients")
    with pytest.raises(InputError, match=r"clients\.ram_gib: .*file/clients"):
        remember(store, 0)


def test_a_bound_must_leave_something() -> None:
    with pytest.raises(InputError, match=r"clients\.ram_gib=0: should be greater than 0"):
        compose("clients.ram_gib=0")


# Through the engine.

SMALL = [
    "rounds=2",
    "clients.count=3",
    "clients.per_round=3",
    "local.epochs=1",
    "data.subset=90",
    "partition=iid",
    "measure.personal.every=1",
]
TINY_BOUND = "clients.ram_gib=4e-6"  # 4.3 kB; a digits MLP alone has more


class Elastic(Proximal):
    """A pull to where the client itself ended last time, which it remembers in every way."""

    def begin(self, client: Any, message: Any, memory: Any) -> None:
        memory.setdefault("visits", torch.zeros((), dtype=torch.int64)).add_(1)
        memory["half"] = torch.full((3,), float(memory["visits"]), dtype=torch.bfloat16)
        known = {name: value for name, value in memory.items() if "." in name}
        self.anchors.set(known or client.weights)
        client.record({"visits": float(memory["visits"] + memory["half"][0])})

    def report(self, client: Any, memory: Any) -> Any:
        for name, value in client.weights.items():
            if name in memory:
                memory[name].copy_(value)
            else:
                memory[name] = value.clone()
        return {}


ELASTIC = [
    "algorithm=fedprox",
    "regularizer._target_=test_client_store.Elastic",
    "regularizer.mu=1",
    "rounds=4",
    "clients.count=5",
    "clients.per_round=3",
]


def life(federation: Federation, rounds: int) -> tuple[list[dict[str, float]], dict[str, Any]]:
    """All metrics but times, and the final weights."""
    metrics = [federation.run_round(round).metrics for round in range(1, rounds + 1)]
    return list(map(timeless, metrics)), federation.server.weights


def assert_same_life(left: Federation, right: Federation, rounds: int) -> None:
    (rows, weights), (other_rows, other_weights) = life(left, rounds), life(right, rounds)
    assert rows == other_rows
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The clients whose state was written, one entry a time."""
    clients: list[int] = []
    spill = RamAndDisk._spill

    def watched(states: RamAndDisk[int, dict[str, Any]], client: int) -> None:
        clients.append(client)
        spill(states, client)

    monkeypatch.setattr(RamAndDisk, "_spill", watched)
    return clients


@pytest.mark.parametrize("personal", [".of=all", ".of=cohort", "=null"])
def test_a_federation_cannot_tell_where_memory_lies(personal: str, written: list[int]) -> None:
    setting = [*SMALL, *ELASTIC, f"measure.personal{personal}"]
    bounded, free = federate(*setting, TINY_BOUND), federate(*setting)
    assert_same_life(bounded, free, rounds=4)
    assert len(written) == 4 * 3  # every turn of the bounded one ended on disk
    visits = free.store.memories("regularizer")
    assert sum(int(memory["visits"]) for memory in visits.values()) == 4 * 3


def test_scaffold_cannot_tell_where_memory_lies(written: list[int]) -> None:
    setting = [*SMALL, "regularizer=control_variates", "optimizer.momentum=0"]
    assert_same_life(federate(*setting, TINY_BOUND), federate(*setting), rounds=2)
    assert len(written) == 2 * 3


@pytest.mark.matrix
@pytest.mark.parametrize("option", CLIENT_SIDE)
def test_what_a_part_remembers_is_its_own(option: str) -> None:
    """A tensor of the resident module would change with the next client, and not on disk."""
    federation = federate(*SMALL, option, *PARTNERS.get(option, []))
    for round in (1, 2):
        list(federation.engine.train([0], federation.server.broadcast(round)))
    module = federation.module
    live = {each.data_ptr() for each in (*module.parameters(), *module.buffers())}
    (_, state), *_ = federation.store.states()
    kept = {t.data_ptr() for memory in state.memories.values() for t in memory.values()}
    assert not kept & live - {0}


def test_private_weights_survive_on_disk(
    monkeypatch: pytest.MonkeyPatch, written: list[int]
) -> None:
    monkeypatch.setattr(
        "fedexp.core.sockets.Personalization.shared",
        lambda self, name: not name.startswith("head."),
    )
    bounded, free = federate(*SMALL, TINY_BOUND), federate(*SMALL)
    assert_same_life(bounded, free, rounds=2)
    assert written


def test_a_run_removes_what_it_spilled(tmp_path: Path, written: list[int]) -> None:
    quiet = ["tracking.wandb.mode=disabled", "tracking.progress=false"]
    fedexp.run([f"hydra.run.dir={tmp_path}", *SMALL, *ELASTIC, *quiet, TINY_BOUND])
    assert written
    assert (tmp_path / "summary.json").exists()
    assert not (tmp_path / "clients").exists()


def test_personal_models_are_scored_from_disk(written: list[int]) -> None:
    found = []
    for bound in (TINY_BOUND, "clients.ram_gib=1"):
        federation = federate(*SMALL, bound)
        federation.run_round(1)
        message = federation.server.broadcast(1)
        found.append(list(Scoring(federation.engine).score_personal(message)))
    assert sorted(written) == [0, 1, 2]
    for (client, left), (other, right) in zip(*found, strict=True):
        assert client == other
        assert left.loss == right.loss
        assert torch.equal(left.correct, right.correct)


@pytest.mark.parametrize("bound", [0, 1e9])
def test_a_client_that_keeps_nothing_takes_no_memory(bound: float, tmp_path: Path) -> None:
    store = ClientStore("cohort", bound, tmp_path)
    for client in range(100):
        with store.open(client) as state:
            state.memory("head")  # stays empty
            state.personal_model = {"w": torch.ones(3)}
    remember(store, 7)
    assert store.clients_with_model == list(range(100))
    store.begin_round()
    assert store.clients_with_state == [7]
    assert len(store._states._ram) + len(on_disk(tmp_path)) == 1
    assert store.memory(7, "head")["x"][0] == 7
    with store.open(7) as state:
        state.memories.clear()
    assert store.clients_with_state == []
    assert not store._states._ram
    assert not on_disk(tmp_path)
