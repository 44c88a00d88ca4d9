"""Words that Hydra refuses: what the error line shows is what the user meant."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fedexp.cli.quoting import parsed, quoted_word, with_home

TEXTS = [
    *("~/cifar", "größe", "a=b", "my file (1).csv", "日本", "it's #1", 'a"b#', "'b", '"b', "a\\'b"),
    *(
        "(b",
        "$(b)",
        "}{",
        "[",
        "[a#b,",
        "#\\",
        "!a",
        "a;b|c&d",
        "<a>",
        "a,#b",
        "`a`",
        " ä ",
        "f(y)",
    ),
    *("C:\\new (2)\\t", "$HOME/#", "${x", "a\nö", "*.csv?#", "100 %", "\tä"),
]


def in_a_shell(word: str) -> str:
    """What a command gets from the shell."""
    done = subprocess.run(["bash", "-c", f"printf '%s.' {word}"], capture_output=True, text=True)
    return done.stdout[:-1]


def value(word: str) -> Any:
    parsed = OverridesParser.create().parse_override(word).value()
    return OmegaConf.to_container(OmegaConf.create({"x": parsed}), resolve=True)["x"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_in_quotes_is_that_text(text: str) -> None:
    word = f"x={text}"
    shown = quoted_word(word, is_sweep=False)
    assert shown is not None
    assert value(in_a_shell(shown)) == text


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("data.root=~/cifar", "'data.root=\"~/cifar\"'"),
        ("x=[a#b]", "'x=[\"a#b\"]'"),
        ("algorithm={'lr':0.1}", "'algorithm={lr:0.1}'"),
        ("x=[1,[b#,'c,d'],{e:f#}]", """'x=[1,["b#",'"'"'c,d'"'"'],{e:"f#"}]'"""),
        ("x=a ${seed} #", "'x=\"a ${seed} #\"'"),  # a reference stays one
        ("x=ä,b", "'x=\"ä,b\"'"),
    ],
)
def test_the_same_word_in_quotes(word: str, shown: str) -> None:
    assert parsed(word) is None
    assert quoted_word(word, is_sweep=False) == shown
    assert parsed(in_a_shell(shown)) is not None


@pytest.mark.parametrize(
    ("word", "shown"), [("x=ä,b", "'x=\"ä\",b'"), ("x=choice(ä,[b#])", '\'x=choice("ä",["b#"])\'')]
)
def test_each_value_of_a_sweep_has_its_own_quotes(word: str, shown: str) -> None:
    assert quoted_word(word, is_sweep=True) == shown


@pytest.mark.parametrize("word", ["größe=1", "a b=1"])
def test_a_key_cannot_be_quoted(word: str) -> None:
    assert quoted_word(word, is_sweep=False) is None


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("data.root=~/cifar", "~/cifar"),
        ("x=~", "~"),
        ("x=[~/a, ~/b c]", ["~/a", "~/b c"]),
        ("hydra.run.dir=~/a", "HOME/a"),
        ("hydra.sweep.dir='~/a b'", "HOME/a b"),
        ("x='~/a'", "~/a"),
    ],
)
def test_a_path_may_begin_with_a_tilde(
    word: str, read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "HOME")
    (changed,) = with_home([word])
    assert value(changed) == read
    assert with_home([changed]) == [changed]


@pytest.mark.parametrize("word", ["~measure.personal", "--config-dir=~/a", "x=~/a (1)", "x=a~b"])
def test_other_words_are_left_as_they_are(word: str) -> None:
    assert with_home([word]) == [word]
