"""Files of Flower's server and nodes from elsewhere: one line that names the file."""

from pathlib import Path

import pytest
import torch
from support.refusals import refused

from fedexp.deployment.flower import app, record
from fedexp.deployment.flower.node_states import NodeStates
from fedexp.errors import InputError

TEXTS = ["", "{", "[]", "{}", '{"config": [], "run": 3, "sizes": {}}', '{"run": "a", "sizes": [1]}']
LOST = ["0", "1.5", "Infinity", '"1"']
TEXTS += [f'{{"run": "a", "sizes": {{}}, "lost": [{round}]}}' for round in LOST]


@pytest.mark.parametrize("content", TEXTS)
def test_texts(content: str, tmp_path: Path) -> None:
    (tmp_path / app.FILE).write_text(content)
    with pytest.raises(InputError) as caught:
        app.read_app(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / app.FILE}: ")
    (tmp_path / record.FILE).write_text(content)
    with refused(r"federation\.json: should hold run and sizes"):
        record.read_record(tmp_path)


@pytest.mark.parametrize("content", [[torch.ones(2)], {"private": [1]}, {"other": {}}, Path])
def test_a_clients_state(content: object, tmp_path: Path) -> None:
    path = tmp_path / "round_000001.pt"
    torch.save(content, path)
    with pytest.raises(InputError) as caught:
        NodeStates(tmp_path).load(1, torch.device("cpu"))
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert "weights_only" not in str(caught.value)
