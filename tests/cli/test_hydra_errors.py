"""Mistyped command lines: one line each."""

import sys

import pytest

import fedexp
from fedexp.errors import InputError
from fedexp.train import main

MISTAKES = {
    "head=nope": "In 'config': Could not find 'head/nope' "
    "Available options in 'head': cosine etf fixed_uniform linear linear_nobias prototype "
    "prototype_paper",
    "clients.per_roun=3": "Could not override 'clients.per_roun'. Did you mean clients.per_round?",
    "optimizer.momentm=1": "Could not override 'optimizer.momentm'. "
    "Did you mean optimizer.momentum?",
    "algoritm=fedprox": "Could not override 'algoritm'. Did you mean algorithm?",
    "xyz=3": "Could not override 'xyz'.",
    "rounds=[": "rounds=[: no viable alternative at input '['",
    "head=null": "head=null: Config group override must be a string or a list. Got NoneType",
}


@pytest.mark.parametrize(("override", "line"), MISTAKES.items())
def test_on_the_command_line(
    override: str, line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedexp", override])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == f"fedexp: {line}"  # which Python prints; the exit code is 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("override", "line"), MISTAKES.items())
def test_from_python(override: str, line: str) -> None:
    with pytest.raises(InputError) as raised:
        fedexp.run([override])
    assert str(raised.value) == line
