"""``fedexp-flower`` writes an app that Flower takes; it needs no flwr itself."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from fedexp.cli.flower import main
from fedexp.cli.option_folders import config_folder
from fedexp.deployment.flower.app import read_app
from fedexp.deployment.flower.bundle import FLWR, MODULE, REQUIREMENT

SMALL = ["algorithm=fedavg", "clients.count=4", "clients.per_round=2"]


def test_the_app_holds_the_checked_config(tmp_path: Path, capsys) -> None:
    main([str(tmp_path / "my-app"), *SMALL, "optimizer.lr=0.25"])
    app = read_app(tmp_path / "my-app" / MODULE)
    assert app.config.optimizer.node["lr"] == 0.25
    assert app.choices["algorithm"] == "fedavg"
    assert "partition" not in app.config.measure
    assert "left out, because they look at clients directly: partition" in capsys.readouterr().out


def test_flags_stand_anywhere_and_options_may_be_of_a_folder_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "own/optimizer").mkdir(parents=True)
    sgd = Path(config_folder(), "optimizer/sgd.yaml").read_text()
    (tmp_path / "own/optimizer/mine.yaml").write_text(sgd)
    flags = ["--own-data", "--config-dir", str(tmp_path / "own")]
    words = [str(tmp_path / "my-app"), *flags[:1], *SMALL, *flags[1:], "optimizer=mine"]
    main(words)
    app = read_app(tmp_path / "my-app" / MODULE)
    assert app.own_data
    assert app.choices["optimizer"] == "mine"


def test_another_config_is_another_version(tmp_path: Path) -> None:
    versions = set()
    for name, words in (("a", []), ("b", []), ("c", ["seed=1"]), ("d", ["--own-data"])):
        main([str(tmp_path / name), *SMALL, *words])
        versions.add(read_app(tmp_path / name / MODULE).version)
    assert len(versions) == 3


def test_flower_takes_the_app(tmp_path: Path) -> None:
    main([str(tmp_path / "my-app"), *SMALL])
    assert len(build_fab_from_disk(tmp_path / "my-app")) < 20_000


def test_flwr_is_pinned_to_one_minor_version(tmp_path: Path) -> None:
    """By the app and by the extra ``flower``."""
    main([str(tmp_path / "my-app"), *SMALL])
    written = tomllib.loads((tmp_path / "my-app" / "pyproject.toml").read_text())
    ours = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert written["tool"]["flwr"]["app"]["flwr-version-target"] == f"{FLWR}.0"
    (extra,) = ours["project"]["optional-dependencies"]["flower"]
    assert extra == REQUIREMENT
    assert extra in written["project"]["dependencies"]


def test_readme_has_the_commands(tmp_path: Path) -> None:
    main([str(tmp_path / "my-app"), *SMALL])
    text = (tmp_path / "my-app" / "README.md").read_text()
    assert '--node-config "partition-id=2"' in text
    assert "up to partition-id=3" in text
    assert "flwr run my-app here --stream" in text
    assert "--enable-supernode-auth" in text


@pytest.mark.parametrize(
    ("data", "places"),
    [
        (["data=digits"], ""),
        (["data=cifar10"], " data-root='/path/to/data'"),
        (["data=tabular", "data.target=c", "data.path=TABLE"], " data-path='/path/to/data'"),
    ],
)
def test_a_nodes_command_names_the_places_of_its_data(
    data: list[str], places: str, tmp_path: Path
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("a,c\n" + "1,x\n2,y\n" * 20)
    main([str(tmp_path / "my-app"), *SMALL, *(each.replace("TABLE", str(table)) for each in data)])
    text = (tmp_path / "my-app" / "README.md").read_text()
    assert f"--node-config \"partition-id=0{places} state='/var/lib/fedexp'\"" in text


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["faults=unreliable"], "faults: are simulated"),
        (["compression=topk"], "compression: should be none"),
        (["aggregator=fltrust"], "aggregator: needs the samples of all clients at once"),
        (["algorithm=fedmd"], "personalization: needs the samples of all clients at once"),
        (["clients.held_out=0.25"], "clients.held_out: should be 0"),
        (["personalization=finetune_best", "data.validation=0.1"], "data.validation should be 0"),
        (["objective=validation/accuracy", "data.validation=0.1"], "validation/accuracy: is not"),
        (["--own-data", "partition=shards"], "partition: should be iid with --own-data"),
        (["measure.personal.samples=100"], "measure.personal.samples=100: should be null"),
        (["optimizer.lr=fast"], "optimizer.lr"),
        (["algorithm=fedawg"], "fedawg"),
    ],
)
def test_refuses_in_one_line(words: list[str], line: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as error:
        main([str(tmp_path / "my-app"), *SMALL, *words])
    assert line in str(error.value)
    assert "\n" not in str(error.value).strip()
    assert not (tmp_path / "my-app").exists()


def test_refuses_a_folder_that_exists_or_has_another_name(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(SystemExit, match="exists already"):
        main([str(tmp_path / "there"), *SMALL])
    with pytest.raises(SystemExit, match="letters, digits and hyphens"):
        main([str(tmp_path / "my_app"), *SMALL])


@pytest.mark.slow
def test_needs_no_flwr() -> None:
    code = "import sys; sys.modules['flwr'] = None; "
    code += "import fedexp.cli.flower, fedexp.deployment.flower.bundle"
    subprocess.run([sys.executable, "-c", code], check=True)
