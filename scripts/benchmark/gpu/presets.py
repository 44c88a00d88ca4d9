"""Every preset for two rounds on digits, compared with the CPU's numbers in the repository."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from digests import SMALL, words_of

import fedexp
from benchmark import results
from benchmark.gpu.place import Place
from fedexp.cli.command import config_folder

REFERENCE = "presets_cpu"
"""The CPU's numbers: ``scripts/results/presets_cpu.json``, by ``bench_gpu.py --reference``."""

ACCURACY, LOSS = 0.02, 0.005
"""Tolerances: an accuracy may differ by 0.02, a loss by half a percent or by 0.005."""

NUMBERS = ("train/loss", "global/loss", "global/accuracy", "personal/accuracy_local")


def names() -> list[str]:
    return sorted(path.stem for path in Path(config_folder(), "algorithm").glob("*.yaml"))


def numbers(preset: str, overrides: Sequence[str]) -> dict[str, float]:
    """The numbers of the preset's last round."""
    with TemporaryDirectory() as folder:
        words = [*SMALL, "rounds=2", *words_of(f"algorithm={preset}"), *overrides]
        found = fedexp.run([*words, f"hydra.run.dir={folder}/run"])
    last = found.metrics.iloc[-1]
    return {name: float(last[name]) for name in NUMBERS if name in last}


Numbers = dict[str, float]


def differences(
    found: dict[str, float], expected: dict[str, float]
) -> dict[str, list[float | None]]:
    """Name -> [found, expected] of each number that is missing or beyond its tolerance."""
    pairs = {name: [found.get(name), expected.get(name)] for name in found.keys() | expected.keys()}
    return {name: pair for name, pair in pairs.items() if not _near(name, *pair)}


def _near(name: str, one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return False
    if "accuracy" in name:
        return abs(one - other) <= ACCURACY
    return abs(one - other) <= LOSS * max(1.0, abs(other))


def compare(place: Place, before: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Run the presets that ``before`` lacks; an error of one is its result."""
    expected, presets = results.read(REFERENCE), dict(before.get("presets", {}))
    chosen = names()[:3] if place.tiny else names()
    for name in chosen:
        if name not in presets:
            presets[name] = _compared(name, place.on_device, expected.get(name, {}))
        agree = sum(not each["differs"] and "error" not in each for each in presets.values())
        yield {"agree": agree, "of": len(chosen), "presets": presets}


def _compared(name: str, on_device: list[str], expected: dict[str, float]) -> dict[str, Any]:
    try:
        found = numbers(name, on_device)
    except Exception as error:  # the others run all the same
        line = str(error).partition("\n")[0]
        return {"error": f"{type(error).__name__}: {line}", "differs": {}}
    return {"numbers": found, "differs": differences(found, expected)}


def write_reference() -> None:
    """Write the CPU's numbers to the repository."""
    results.write(REFERENCE, {name: numbers(name, ["engine.device=cpu"]) for name in names()})
