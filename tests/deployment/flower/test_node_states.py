from pathlib import Path

import torch

from fedexp.deployment.flower.node_states import NodeStates
from fedexp.state.client_state import ClientState

CPU = torch.device("cpu")


def state(value: int) -> ClientState:
    return ClientState(private={"w": torch.tensor(value)})


def rounds(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("round_")) for path in folder.glob("round_*.pt"))


def test_begins_empty_and_goes_on_from_the_named_round(tmp_path: Path) -> None:
    states = NodeStates(tmp_path / "client")
    assert states.load(0, CPU) == ClientState()
    states.save(2, state(2), base=0, saved=0)
    found = states.load(2, CPU)
    assert found is not None
    assert found.private["w"] == 2
    assert states.load(1, CPU) is None


def test_keeps_what_a_checkpoint_may_need(tmp_path: Path) -> None:
    """The oldest checkpoint is of round 5: the newest state up to it is that of round 4."""
    states = NodeStates(tmp_path)
    for round, base in ((1, 0), (4, 1), (6, 4)):
        states.save(round, state(round), base, saved=0)
    assert rounds(tmp_path) == [1, 4, 6]
    states.save(8, state(8), base=6, saved=5)
    assert rounds(tmp_path) == [4, 6, 8]


def test_drops_states_of_updates_that_got_lost(tmp_path: Path) -> None:
    """The update of round 3 got lost; a state of round 2 after it must not become the newest."""
    states = NodeStates(tmp_path)
    states.save(1, state(1), base=0, saved=0)
    states.save(3, state(3), base=1, saved=0)
    states.save(4, state(4), base=1, saved=3)
    assert rounds(tmp_path) == [1, 4]


def test_a_repeated_round_replaces_its_state(tmp_path: Path) -> None:
    states = NodeStates(tmp_path)
    states.save(1, state(1), base=0, saved=0)
    states.save(2, state(2), base=1, saved=1)
    states.save(2, state(7), base=1, saved=1)
    found = states.load(2, CPU)
    assert rounds(tmp_path) == [1, 2]
    assert found is not None
    assert found.private["w"] == 7
