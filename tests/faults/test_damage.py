"""A run whose files were damaged goes on to the same end, or stops in one line."""

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.short_runs import Outcome, outcome, refusal, run

OVERRIDES = ["algorithm=fedcda", "aggregator.warmup=1", "aggregator.memory=2"]
COUNTS: Counter[str] = Counter()


def truncate(path: Path, draw: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(path: Path, draw: random.Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "truncated": truncate,
    "zeroed": zero,
    "flipped": flip,
    "flipped again": flip,
    "gone": lambda path, draw: path.unlink(),
}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds."""
    folder = tmp_path_factory.mktemp("damage") / "ended"
    run(folder, *OVERRIDES, "rounds=3")
    return folder


@pytest.fixture(scope="module")
def expected(ended: Path) -> Outcome:
    """The outcome of a fourth round."""
    folder = ended.with_name("extended")
    shutil.copytree(ended, folder)
    return run(folder, *OVERRIDES)


def files(folder: Path) -> list[str]:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    return [str(path.relative_to(folder)) for path in found]


def check(ended: Path, name: str, damage: str, folder: Path, expected: Outcome) -> None:
    """Damage this file of a copy and resume the run."""
    shutil.copytree(ended, folder)
    DAMAGES[damage](folder / name, random.Random(f"{name} {damage}"))
    line = refusal(folder, *OVERRIDES)
    if line is None:
        assert outcome(folder) == expected
    else:
        assert str(folder) in line
        assert "\n" not in line
    COUNTS["one line" if line else "same end"] += 1


QUICK = ["run.json", "summary.json", "checkpoints/round_0003/checkpoint.json"]
QUICK += ["checkpoints/round_0003/server.pt", "checkpoints/round_0003/identity.json"]


@pytest.mark.parametrize("name", QUICK)
def test_some_damage(name: str, ended: Path, expected: Outcome, tmp_path: Path) -> None:
    check(ended, name, "flipped", tmp_path / "run", expected)


def test_a_checkpoint_of_another_run_is_refused(ended: Path, tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(ended, folder)
    run(other, *OVERRIDES, "rounds=4", "seed=1")
    foreign = folder / "checkpoints" / "round_0004"
    shutil.copytree(other / "checkpoints" / "round_0004", foreign)
    line = f"{foreign}: is the checkpoint of a run that had seed=1; move it to another folder"
    assert refusal(folder, *OVERRIDES) == line
    assert foreign.exists()


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_every_file(damage: str, ended: Path, expected: Outcome, tmp_path: Path) -> None:
    names = files(ended)
    assert len(names) > 25
    COUNTS.clear()
    for number, name in enumerate(names):
        check(ended, name, damage, tmp_path / str(number), expected)
    print(f"{damage}: {len(names)} files; {dict(COUNTS)}")
    assert COUNTS["same end"] > 20
