"""Flags among the overrides."""

import pytest

from fedexp.cli.arguments import config_dir_in, flags_last
from fedexp.errors import InputError


@pytest.mark.parametrize(
    ("typed", "ordered"),
    [
        ("rounds=3 --config-dir own loss=mine", "rounds=3 loss=mine --config-dir own"),
        ("-m a=1,2 b=1", "a=1,2 b=1 -m"),
        ("a=1 -cd own -m b=1 --hydra-help", "a=1 b=1 -cd own -m --hydra-help"),
        ("--info a=1 --cfg job b=2", "a=1 b=2 --info --cfg job"),
        ("--info searchpath a=1", "a=1 --info searchpath"),
        ("--config-d=own --multi a=1", "a=1 --config-d=own --multi"),
        ("--config-dir ~/own a=1 --config-path=~/b", "a=1 --config-dir H/own --config-path=H/b"),
        ("~measure.personal -r +a=1", "~measure.personal +a=1 -r"),
    ],
)
def test_the_flags_come_last_with_their_values(
    typed: str, ordered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "H")
    assert flags_last(typed.split()) == ordered.split()
    assert flags_last(ordered.split()) == ordered.split()


def test_the_folder_of_the_user_s_options() -> None:
    for flags in (["--config-dir", "own"], ["-cd", "own"], ["--config-dir=own", "--cfg", "job"]):
        assert config_dir_in(["a=1", "~b", *flags]) == "own"
    assert config_dir_in(["a=1"]) is None


@pytest.mark.parametrize(
    ("flag", "line"),
    [
        ("--confg-dir", "--confg-dir: no such flag; did you mean --config-dir?"),
        ("-x", "-x: no such flag; --hydra-help lists the flags"),
        ("--config-", "--config-: could be --config-path or --config-name or --config-dir"),
        ("--lr=1", "--lr=1: keys are written without dashes: lr=1"),
    ],
)
def test_a_mistyped_flag(flag: str, line: str) -> None:
    with pytest.raises(InputError) as raised:
        flags_last(["a=1", flag])
    assert str(raised.value) == line
