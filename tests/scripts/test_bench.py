"""The scripts fit the package: what they import is there, and a benchmark is run."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
MODULES = [
    *sorted(path.stem for path in SCRIPTS.glob("*.py")),
    *sorted(f"papers.{path.stem}" for path in SCRIPTS.glob("papers/*.py")),
]
SUBJECTS = sorted(path.stem for path in SCRIPTS.glob("benchmark/subjects/[!_]*.py"))


@pytest.fixture(autouse=True)
def beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


@pytest.mark.parametrize("name", MODULES)
def test_what_a_script_imports_exists(name: str) -> None:
    import_module(name)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_each_subject_has_help(
    subject: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.py", subject, "--help"])
    with pytest.raises(SystemExit):
        import_module("bench").main()
    assert f"python scripts/bench.py {subject}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["store_"]])
def test_without_a_subject_all_are_listed(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.py", *arguments])
    bench = import_module("bench")
    with pytest.raises(SystemExit) as caught:
        bench.main()
    _, *listed = str(caught.value).splitlines()
    assert sorted(line.split()[0] for line in listed) == SUBJECTS == sorted(bench.SUBJECTS)


def test_personal_models_are_scored_as_by_a_plain_loop() -> None:
    evaluation = import_module("benchmark.subjects.evaluation")
    federation = evaluation.with_models([*evaluation.CLIENTS, *evaluation.dirichlet(0.3)], 2, None)
    plain = evaluation.one_after_another(federation)
    found = evaluation.evaluate(federation)
    for kind in ("uniform", "local", "test_split"):
        mean = sum(row[kind] for row in plain) / len(plain)
        assert found[f"personal/accuracy_{kind}"] == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize("job", ["random", "weighted", "hics, exact", "hics, landmarks"])
def test_each_sampler_that_is_measured_chooses_a_cohort(job: str) -> None:
    samplers = import_module("benchmark.subjects.samplers")
    cohort = samplers.prepare(job, 200).select(samplers.ROUNDS // 2)
    assert len(set(cohort)) == samplers.COHORT
