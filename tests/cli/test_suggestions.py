"""The key that was meant: of the chosen options, never one that they lack."""

import sys
from pathlib import Path

import pytest

from fedexp.cli.command import config_folder
from fedexp.cli.suggestions import _SYNONYMS, _keys_in_use, suggested_key
from fedexp.train import main

CONF = Path(config_folder())


@pytest.mark.parametrize(
    ("unknown", "others", "meant"),
    [
        ("momentum", [], "optimizer.momentum"),
        ("momentum", ["optimizer=adam"], None),
        ("momentum", ["algorithm=scaffold", "optimizer=adam"], None),
        ("beta1", ["aggregator=adam"], "aggregator.beta1"),
        ("tau", [], None),
        ("rho", ["algorithm=fednh,fedavg", "-m"], "head.rho"),
        ("clip", [], None),
        ("dataset", [], "data"),
        ("alpha", ["partition=iid"], None),
        ("beta", ["head=nope"], "partition.beta"),  # what cannot be composed is left out
    ],
)
def test_a_key_of_the_chosen_options(unknown: str, others: list[str], meant: str | None) -> None:
    advice = suggested_key(unknown, [*others, f"{unknown}=1"], None)
    assert advice == (f" Did you mean {meant}?" if meant else "")


@pytest.mark.parametrize(
    ("unknown", "others", "advice"),
    [
        ("loss.lamda_weigth", ["loss=mine"], "Did you mean loss.lambda_weight?"),
        ("loss.momentun", ["loss=mine"], "Did you mean loss.momentum?"),
        ("loss.momentun", [], "Did you mean loss.momentum, a key of loss=mine?"),
        ("loss.lambda_weight", [], "It is a key of loss=mine, not of the chosen option."),
        ("optimizer.momentun", ["loss=mine"], "Did you mean optimizer.momentum?"),
        ("table.siz", ["+table=one"], "Did you mean table.size?"),
        ("tabel", [], "Did you mean table?"),
        (
            "model.classes",
            ["model=custom", "model._target_=network.Net"],
            "An argument of your own class is added as +model.classes=VALUE.",
        ),
    ],
)
def test_options_in_the_user_s_folder_are_known(
    unknown: str, others: list[str], advice: str, tmp_path: Path
) -> None:
    for file, text in FILES.items():
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text)
    assert suggested_key(unknown, [*others, f"{unknown}=1"], tmp_path) == f" {advice}"


FILES = {"loss/mine.yaml": "lambda_weight: 1\nmomentum: 0.5\n", "table/one.yaml": "size: 3\n"}


@pytest.mark.parametrize("flags", [["--config-dir", "own"], ["-cd=own"]])
def test_the_command_line_names_them(
    flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own/loss").mkdir(parents=True)
    (tmp_path / "own/loss/mine.yaml").write_text(FILES["loss/mine.yaml"])
    monkeypatch.chdir(tmp_path)
    lines = {
        "loss=mien": "loss=mien: no such option; did you mean loss=mine?",
        "loss.lamda_weigth=1": "Could not override 'loss.lamda_weigth'. Did you mean "
        "loss.lambda_weight?",
    }
    for word, line in lines.items():
        monkeypatch.setattr(sys, "argv", ["fedexp", "rounds=1", *flags, "loss=mine", word])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == f"fedexp: {line}"


def test_words_of_other_frameworks_lead_to_keys_that_exist() -> None:
    groups = {path.name for path in CONF.iterdir()}
    assert set(_SYNONYMS.values()) <= {*_keys_in_use([], [CONF], []), *groups}
