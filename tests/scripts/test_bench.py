"""The scripts that measure speed fit the package: what they import is there, and one is run."""

from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def beside_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_what_a_script_imports_exists(name: str) -> None:
    import_module(name)


def test_personal_models_are_scored_as_by_a_plain_loop() -> None:
    bench = import_module("bench_evaluation")
    federation = bench.with_models([*bench.CLIENTS, *bench.dirichlet(0.3)], 2, None)
    plain = bench.one_after_another(federation)
    found = bench.evaluate(federation)
    for kind in ("uniform", "local", "test_split"):
        mean = sum(row[kind] for row in plain) / len(plain)
        assert found[f"personal/accuracy_{kind}"] == pytest.approx(mean, abs=1e-6)
