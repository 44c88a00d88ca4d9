"""The built wheel, what its metadata say, the comments in the YAML, the default experiment."""

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

import fedexp
from fedexp.tracking.environment import fedexp_version

ROOT = Path(__file__).parent.parent


def test_a_wheel_carries_its_configs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([*build, str(ROOT)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (entry,) = (tmp_path / "site").glob("*.dist-info/entry_points.txt")
    assert "fedexp = fedexp.__main__:main" in entry.read_text()
    assert "fedexp-partition = fedexp.preview:main" in entry.read_text()
    assert (tmp_path / "site" / "fedexp" / "py.typed").exists()
    printed = subprocess.run(
        [sys.executable, "-c", "import fedexp.train; print(fedexp.train.config_folder())"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    folder = Path(printed.stdout.strip())
    assert folder == tmp_path / "site" / "fedexp" / "conf"
    shipped = {path.relative_to(folder) for path in folder.rglob("*.yaml")}
    assert shipped == {path.relative_to(ROOT / "conf") for path in (ROOT / "conf").rglob("*.yaml")}
    methods = (folder.parent / "coming_from.yaml").read_bytes()  # for errors of the command line
    assert methods == (ROOT / "docs" / "coming_from" / "methods.yaml").read_bytes()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ADDRESSED = [
    "docs/index.md",
    *["pyproject.toml", "README.md", "CHANGELOG.md", "CITATION.cff", "SECURITY.md"],
    *["docs/start/first_table.md", ".github/ISSUE_TEMPLATE/config.yml"],
]
"""The files with the address of the repository."""


@pytest.mark.parametrize("name", ADDRESSED)
def test_the_address_of_the_repository_is_the_same_everywhere(name: str) -> None:
    """To replace it: the command in CONTRIBUTING.md, under "Release"."""
    text = (ROOT / name).read_text()
    found = set(re.findall(r"https://github\.com/[\w.-]+/fedexp\b", text))
    assert found == {PROJECT["urls"]["Source"]}


def test_the_pages_of_the_repository_are_its_documentation() -> None:
    owner, name = PROJECT["urls"]["Source"].rsplit("/", 2)[-2:]
    assert PROJECT["urls"]["Documentation"] == f"https://{owner}.github.io/{name}/"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["repository-code"] == PROJECT["urls"]["Source"]
    assert cited["url"] == PROJECT["urls"]["Documentation"]


def test_the_version_is_cited_and_has_its_changes() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(cited["version"]) == PROJECT["version"]
    assert [each["name"] for each in cited["authors"]] == [e["name"] for e in PROJECT["authors"]]
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{PROJECT['version']}] - {cited['date-released']}\n" in changes
    assert changes.index("## [Unreleased]") < changes.index(f"## [{PROJECT['version']}]")


def test_the_version_is_that_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone may stand before an installed package of another version."""
    assert fedexp.__version__ == PROJECT["version"]
    other = tmp_path / "pyproject.toml"
    monkeypatch.setattr("fedexp.version._PROJECT", other)
    assert fedexp.__version__ == version("fedexp")
    for name, expected in {"another": version("fedexp"), "fedexp": "99.0"}.items():
        other.write_text(f'[project]\nname = "{name}"\nversion = "99.0"\n')
        assert fedexp.__version__ == expected
    fedexp_version.cache_clear()
    assert fedexp_version()["version"] == "99.0"
    fedexp_version.cache_clear()


def test_every_key_has_a_comment() -> None:
    """In the YAML that sets it, on the same line."""
    without = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted((ROOT / "conf").rglob("*.yaml"))
        if not {"hydra", "experiment", "protocol", "method"} & set(path.parts)
        for line in path.read_text().partition("\nhydra:")[0].splitlines()
        if not line.lstrip().startswith(("#", "-", "_target_:"))
        and ": " in line
        and "#" not in line
    ]
    assert without == []


@pytest.mark.slow
def test_the_default_experiment_learns(tmp_path: Path) -> None:
    result = fedexp.run([f"hydra.run.dir={tmp_path / 'run'}"])
    assert len(result.metrics) == 30
    assert result.summary["metrics"]["global/accuracy"]["final"] >= 0.90


@pytest.mark.slow
def test_real_images_train(tmp_path: Path, cifar10_images: Path) -> None:
    """Five rounds of FedAvg on CIFAR-10 beat chance by far."""
    result = fedexp.run(
        [
            *["experiment=cifar10", "data=image_folder", f"data.root={cifar10_images}"],
            *["rounds=5", "measure.personal=null", f"hydra.run.dir={tmp_path / 'run'}"],
        ]
    )
    assert result.summary["metrics"]["global/accuracy"]["final"] > 0.2


def test_the_weekly_workflow_runs_the_slow_tests_of_every_room() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "slow.yml").read_text())
    jobs = workflow["jobs"]["slow"]["strategy"]["matrix"]["rooms"]
    rooms = {path.relative_to(ROOT).parts[1] for path in (ROOT / "tests").glob("*/**/test_*.py")}
    expected = ["tests/test_*.py", *(f"tests/{room}" for room in rooms)]
    assert sorted(word for job in jobs for word in job.split()) == sorted(expected)
