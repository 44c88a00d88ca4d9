"""Mistyped command lines: one line each."""

import contextlib
import sys
from pathlib import Path

import pytest
from hydra.errors import HydraException

import fedexp
from fedexp.cli.hydra_errors import one_line
from fedexp.cli.option_folders import config_folder
from fedexp.errors import InputError
from fedexp.train import main

MISTAKES = {
    "head=nope": "head=nope: no such option; there are: adapted_linear, calibrated, corrected, "
    "cosine, etf, fixed_uniform, gaussian, identity, linear, linear_nobias, mixture, "
    "projected_etf, prototype, prototype_paper, retrained, simplex, spread_out; "
    "one of yours is the file DIR/head/nope.yaml with --config-dir DIR",
    "measure=drift": "Could not override 'measure'. No match in the defaults list. "
    "To append to your default list use +measure=drift",
    "algorithm=fedpro": "algorithm=fedpro: no such option; did you mean algorithm=fedprox or "
    "algorithm=fedproto?",
    "algorithm=FedNova": "algorithm=FedNova: no such option; here it is algorithm=fednova",
    "algorithm=lgfedavg": "algorithm=lgfedavg: no such option; here it is algorithm=lg_fedavg",
    "algorithm=gossip_dfl": "algorithm=gossip_dfl: no such option; it is not built: it has "
    "no server; every client exchanges models with its neighbours",
    "compression@download=topkk": "compression@download=topkk: no such option; did you mean "
    "compression@download=topk?",
    "schedule=cosin": "schedule=cosin: no such option; did you mean schedule=cosine?",
    "experiment=hics/fmnist": "experiment=hics/fmnist: no such option; did you mean "
    "experiment=hics/table1_fmnist or experiment=hics/fmnist_setting3 or "
    "experiment=hics/fmnist_setting2?",
    "local.lr=1": "Could not override 'local.lr'. Did you mean optimizer.lr?",
    "batch_size=32": "Could not override 'batch_size'. Did you mean local.batch_size?",
    "lr=0.1": "Could not override 'lr'. Did you mean optimizer.lr?",
    "clients.per_roun=3": "Could not override 'clients.per_roun'. Did you mean clients.per_round?",
    "optimizer.momentm=1": "Could not override 'optimizer.momentm'. "
    "Did you mean optimizer.momentum?",
    "loss.neighbors=1": "Could not override 'loss.neighbors'. "
    "It is a key of loss=rpcl_cpdr, not of the chosen option.",
    "personalization.head_epochs=1": "Could not override 'personalization.head_epochs'. "
    "It is a key of personalization=fedah, personalization=fedpac, personalization=fedrep, "
    "personalization=flute, not of the chosen option.",
    "fedavg": "fedavg: should be GROUP=OPTION or KEY=VALUE; a value with spaces is quoted for the "
    "shell",
    "algoritm=fedprox": "Could not override 'algoritm'. Did you mean algorithm?",
    "learning_rate=1": "Could not override 'learning_rate'. Did you mean optimizer.lr?",
    "num_clients=9": "Could not override 'num_clients'. Did you mean clients.count?",
    "epocs=2": "Could not override 'epocs'. Did you mean local.epochs?",
    "xyz=3": "Could not override 'xyz'.",
    "rounds=[": "rounds=[: cannot be read; write 'rounds=\"[\"'",
    "größe=1": "größe=1: cannot be read; a key has only letters from a to z, digits and . _ - / @",
    "seed=int(x)": "seed=int(x): ValueError while evaluating 'int(x)': invalid literal for int() "
    "with base 10: 'x'",
    "seed=0,1": "seed=0,1: several values need -m; one list is 'seed=[0,1]', one text is "
    "'seed=\"0,1\"'",
    "head.roh=1": "Could not override 'head.roh'. Did you mean head.rho?",
    "evaluation.personal_every=1": "Could not override 'evaluation.personal_every'. "
    "It is now measure.personal.every",
    "head=null": "head=null: Config group override must be a string or a list. Got NoneType",
}


@pytest.mark.matrix
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


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("--algorithm=x", "algorithm=x"),
        ("--data.root=~/a b", "data.root=~/a b"),
        ("--seed", "seed=VALUE"),
    ],
)
def test_a_key_with_dashes(
    argument: str, meant: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedexp", argument])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == f"fedexp: {argument}: keys are written without dashes: {meant}"
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("flags", [["--cfg=job"], ["--cfg", "job", "--resolve"], ["--hel"]])
def test_flags_of_hydra_are_still_taken(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedexp", *flags])
    with contextlib.suppress(SystemExit):
        main()
    out, err = capfd.readouterr()
    assert "seed" in out
    assert not err


@pytest.mark.parametrize("override", ["algorithm=FedNova", "local.lr=1", "rounds=["])
def test_from_python(override: str) -> None:
    with pytest.raises(InputError) as raised:
        fedexp.run([override])
    assert str(raised.value) == MISTAKES[override]


def test_two_flags_that_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fedexp", "-m", "--cfg", "job"])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    with pytest.raises(SystemExit, match=r"^fedexp: .*Only one of --run, --multirun, --cfg"):
        main()


@pytest.mark.parametrize("flags", [["--config-dir", "conf"], ["-cd=conf/../conf"]])
def test_the_folder_of_the_user_is_not_that_of_fedexp(
    flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(config_folder()).parent)
    monkeypatch.setattr(sys, "argv", ["fedexp", *flags, "--cfg", "job"])
    with pytest.raises(SystemExit, match=r"^fedexp: --config-dir conf.*: is fedexp's own folder,"):
        main()


def test_an_option_of_an_extra_that_is_not_installed_says_what_to_install() -> None:
    said = "Could not find 'hydra/launcher/ray'\n\nAvailable options in 'hydra/launcher':\n\tbasic"
    with pytest.raises(InputError) as raised, one_line([]):
        raise HydraException(said)
    assert str(raised.value).endswith("basic; it comes with pip install 'fedexp[ray]'.")


def test_defaults_that_form_a_circle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write("conf/loss/a.yaml", "defaults:\n  - b\n")
    _write("conf/loss/b.yaml", "defaults: [{/loss: a}]\n")
    with pytest.raises(InputError) as raised:
        fedexp.run(["loss=a"], config_dir="conf")
    names = "conf/loss/a.yaml -> conf/loss/b.yaml -> conf/loss/a.yaml"
    assert str(raised.value) == f"{names}: the defaults of these files form a circle"


def test_a_recursion_error_of_a_users_part_stays(tmp_path: Path) -> None:
    with pytest.raises(RecursionError), one_line(["--config-dir", str(tmp_path)]):
        raise RecursionError


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("a: 1\n\tb: 2\n", "conf/loss/own.yaml, line 2: is not valid YAML (found character '\\t' "),
        ("x: 1\n", "conf/loss/own.yaml: loss._target_: is missing; it names a class, as in "),
        ("", "conf/loss/own.yaml: loss._target_: is missing; it names a class, as in "),
        ("[1]", "conf/loss/own.yaml: loss=[1]: should be a valid dictionary"),
        ("_target_: no.Such", "conf/loss/own.yaml: loss._target_=no.Such: cannot be imported"),
    ],
)
def test_a_mistake_in_the_file_of_an_own_option_names_the_file(
    content: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _write("conf/loss/own.yaml", content)
    with pytest.raises(InputError) as raised:
        fedexp.run(["loss=own"], config_dir="conf")
    assert str(raised.value).startswith(line)


def _write(name: str, content: str) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
