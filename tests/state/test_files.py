"""Files of tensors from elsewhere: one line that names the file, and nothing of it runs."""

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedexp.errors import InputError
from fedexp.state.files import check_finite, dump, load_tensors

GOOD = {"weight": torch.ones(3), "count": torch.tensor(2)}


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.made),)


def payload(path: Path) -> bytes:
    return dump({"weight": Payload(path.with_name("made"))})


def pickled(path: Path) -> bytes:
    return pickle.dumps(Payload(path.with_name("made")))


FOREIGN: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "empty": (lambda path: b"", "cannot be read (it is empty)"),
    "truncated": (lambda path: dump(GOOD)[:-20], "cannot be read (it is damaged, or holds other"),
    "text": (lambda path: b"hello\n", "cannot be read (it is damaged, or holds other"),
    "payload": (payload, "cannot be read (it is damaged, or holds other things than tensors"),
    "pickled": (pickled, "cannot be read (it is damaged, or holds other things than tensors"),
    "list": (lambda path: dump([torch.ones(3)]), "is not a state dict (names and tensors"),
    "nested": (lambda path: dump({"state_dict": GOOD}), "is not a state dict (names and tensors"),
    "numbered": (lambda path: dump({0: torch.ones(3)}), "is not a state dict (names and tensors"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_other_files_are_one_line_without_dangerous_advice(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "final.pt"
    content, said = FOREIGN[kind]
    path.write_bytes(content(path))
    with pytest.raises(InputError) as caught:
        load_tensors(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: {said}")
    assert "\n" not in line
    assert "weights_only" not in line
    assert caught.value.__cause__ is None  # no traceback shows PyTorch's advice either
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert [each.name for each in tmp_path.iterdir()] == ["final.pt"]  # nothing ran


def test_a_state_dict_may_be_ordered(tmp_path: Path) -> None:
    (tmp_path / "final.pt").write_bytes(dump(OrderedDict(GOOD)))
    assert load_tensors(tmp_path / "final.pt").keys() == GOOD.keys()


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite(wrong: float) -> None:
    check_finite(GOOD, Path("a.pt"))
    with pytest.raises(InputError, match=r"^a\.pt: weight holds NaN or Inf; "):
        check_finite({**GOOD, "weight": torch.tensor([1, wrong])}, Path("a.pt"))
