"""Runs on the pretended device end with the CPU's bits, and wait for it only in known places.

No training step waits. A client's turn waits once, and a round a few times. The table has the
other places, with the reason; a place that is not in it is a mistake.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.device_cases import CASES
from support.pretended_runs import (
    DEVICE,
    NEEDS_COMPILER,
    TWO_ROUNDS,
    Outcome,
    Wait,
    both,
    new_process,
    outcome,
)

import fedexp
from fedexp.deployment.export import export
from fedexp.testing.pretended import Pretended

pytestmark = [NEEDS_COMPILER, pytest.mark.slow]

STEPS = ("engines/base.py Engine._fit_phase", "engines/vectorized.py Vectorized._fit_phase_of_all")
"""The loops over training steps: nothing inside of these calls may wait."""

ROUNDED = {"model=convnet"}
"""Runs with equal weights and rounded scores, because their models have convolutions.

A CPU scores such models one after another, a device in a stack (``StackedScores.size``). In a
stack, a convolution with several input channels is a grouped one, which sums in another order, and
GroupNorm is a normalisation without parameters, then a product and a sum, which are rounded apart.
"""

ROOMS = {
    "data": "the data are moved once in a run",
    "measures": "results are read, once for each group of models that are scored together",
    "runtime": "before the first round and after the last one",
    "state": "what is saved is on the CPU",
    "tracking": "the digest of the final weights",
}
_ON_CPU = "the server computes a few numbers for each client, or keeps models, on the CPU"
_OWN = "before training; it looks up the samples of the client's own classes"
PLACES = {
    "engines/turn.py on_host": "the one wait of a turn: its losses, and whether all is finite",
    "engines/stacking_errors.py Attributes.check": "once a stack: attributes that a part has set",
    "compression/download.py CompressingServer._following": "once a round: whether it is finite",
    "faults/quarantine.py _all_finite": "once a round: whether the merged model is finite",
    "aggregators/agnostic.py Agnostic.aggregate": _ON_CPU,
    "aggregators/centered_clipping.py CenteredClipping.global_step": _ON_CPU,
    "aggregators/clipping.py norm_of": "once an update: its norm decides its factor",
    "aggregators/cross_round.py CrossRound._add": _ON_CPU,
    "aggregators/cross_round.py CrossRound._remember": _ON_CPU,
    "aggregators/cross_round.py CrossRound._select_batch": _ON_CPU,
    "aggregators/cross_round.py _step": _ON_CPU,
    "aggregators/disco.py Disco.combine": "once a round: the weights of the clients",
    "aggregators/disco.py discrepancy": "once a turn: with zeros the sum would round differently",
    "aggregators/elastic.py Elastic.merge": "once a round: a metric",
    "aggregators/fisher_weighted.py FisherWeighted.factor": "once an update: its weight",
    "aggregators/fltrust.py FLTrust.global_step": _ON_CPU,
    "aggregators/fltrust.py compared": _ON_CPU,
    "aggregators/geometric_median.py GeometricMedian.global_step": _ON_CPU,
    "aggregators/global_step.py distances": _ON_CPU,
    "aggregators/krum.py squared_distances": _ON_CPU,
    "aggregators/q_fair.py QFair.summand": "once an update: its weight",
    "aggregators/q_fair.py _power": "once an update: its weight",
    "drawing/feature_map.py feature_map": "a figure",
    "core/server_training.py diverged": "once a round: whether it diverged",
    "faults/backdoor.py Backdoor.__call__": "once an attacker's turn: a bincount of its labels",
    "faults/quarantine.py _named": "an update that is not finite: which tensor to name",
    "compression/svd.py SingularValues.encode": "once a tensor that is sent: whether it is finite",
    "compression/svd.py number_of_values": "once a tensor that is sent: its size",
    "faults/quarantine.py _row": "an update that is not finite: which row to name",
    "gradients/client_momentum.py ClientMomentum.correct": "once a round: one divisor",
    "heads/calibrated.py Calibrated._virtual": "once a class and round, of few rounds",
    "heads/calibrated.py Calibrated.begin": _OWN,
    "heads/calibrated.py Calibrated.correct": "once a round: the classes that someone holds",
    "heads/calibrated.py gaussian_features": "once a class: a root of its covariance",
    "heads/discriminant.py best_betas": "before training or at its end: the losses of a minimiser",
    "heads/discriminant.py stratified": "before training or at its end: the labels to be split",
    "heads/global_classifier.py trained_classifier": "once a round: the classifier",
    "heads/prototype.py Prototype.aggregate": "once a run, when the prototypes leave the CPU",
    "heads/prototype.py Prototype.broadcast": "once a run, when the prototypes leave the CPU",
    "heads/retrained.py Retrained._gradients": _OWN,
    "heads/retrained.py Retrained.broadcast": "once a run, when the classifier leaves the CPU",
    "heads/retrained.py Retrained.correct": "once a round: the classes that someone holds",
    "heads/simplex.py Simplex.aggregate": _ON_CPU,
    "losses/generator.py GeneratorTraining.train": "once a round: classes, model and last loss",
    "personalization/apple.py APPLE.message_to": _ON_CPU,
    "personalization/cfl.py CFL._division": "once a round: whether a cluster is divided",
    "personalization/client_models.py MixesModels.message_to": _ON_CPU,
    "personalization/fedala.py FedALA._learn": "once an epoch: it stops when the loss is steady",
    "personalization/fedap.py FedAP.aggregate": _ON_CPU,
    "personalization/fedas.py distance_from_means": "before training: a bincount of labels",
    "personalization/fedcac.py FedCAC._overlaps": _ON_CPU,
    "personalization/fedcac.py FedCAC.message_to": _ON_CPU,
    "personalization/fedfomo.py FedFomo.aggregate": _ON_CPU,
    "personalization/fedgh.py FedGH.aggregate": "once a round: the classes that someone holds",
    "personalization/fedpac.py FedPAC.message_to": _ON_CPU,
    "personalization/fedpac.py collaboration_weights": _ON_CPU,
    "personalization/fedpac.py combined": _ON_CPU,
    "personalization/ifca.py IFCA.aggregate": "once a round: the clusters that clients chose",
    "personalization/ifca.py IFCA.choose": "once a turn: the model that the client chooses",
    "personalization/pfedla.py PFedLA._train": _ON_CPU,
    "personalization/pfedla.py PFedLA.message_to": _ON_CPU,
    "personalization/pfedsim.py similarity": "once a pair of the cohort's clients",
    "personalization/server_network.py ServerNetwork.to": "once a run, when it leaves the CPU",
    "regularizers/look_ahead.py StepMatching._learn": "once a round or turn: whether it diverged",
    "regularizers/look_ahead.py StepMatching.learn": "once a round or turn: a metric",
    "regularizers/look_ahead.py _different": "once a round or turn: which weights changed",
    "regularizers/synthetic.py client_start": _OWN,
    "regularizers/synthetic.py real_images": _OWN,
    "regularizers/synthetic_images.py synthetic_images": "a figure",
    "regularizers/trajectory.py Trajectory._predict": "once a round or turn: whether it diverged",
    "samplers/hics.py HiCS._store": _ON_CPU,
    "samplers/last_updates.py LastUpdates.replace": _ON_CPU,
    "samplers/oort.py Oort.aggregate": _ON_CPU,
    "samplers/power_of_choice.py PowerOfChoice.observe": "once a round: the candidates' losses",
}
"""Place -> how often it waits, and why."""


def place(wait: Wait) -> str:
    """The innermost function of fedexp; a backward pass has none."""
    return wait.calls[0].partition(".<locals>")[0] if wait.calls else "a backward pass"


def unknown(found: list[Wait]) -> set[str]:
    """The places that wait without being in the tables."""
    places = {place(each) for each in found} - PLACES.keys()
    return {each for each in places if each.partition("/")[0] not in ROOMS}


def flat(numbers: dict[str, Any]) -> dict[str, float]:
    """The numbers of a round, with a name for each class of a number for each class."""
    lines = {
        name: value if isinstance(value, dict) else {"": value} for name, value in numbers.items()
    }
    return {f"{name} {key}": number for name, line in lines.items() for key, number in line.items()}


@pytest.fixture(scope="module")
def process() -> Iterator[ProcessPoolExecutor]:
    with new_process() as found:
        yield found


@pytest.mark.parametrize("name", CASES)
def test_a_run_has_the_bits_of_the_cpu_and_waits_in_known_places(
    name: str, process: ProcessPoolExecutor
) -> None:
    found = process.submit(both, CASES[name], dict(os.environ)).result()
    assert not isinstance(found, str), found
    cpu, device = found
    assert device.weights == cpu.weights
    if name in ROUNDED:
        assert list(map(flat, device.numbers)) == [
            pytest.approx(flat(each)) for each in cpu.numbers
        ]
    else:
        assert device.numbers == cpu.numbers
    if "engine=trainer" not in CASES[name]:  # Lightning's Trainer has waits of its own
        assert unknown(device.found) == set()
        assert [each for each in device.found if set(each.calls) & set(STEPS)] == []


@pytest.mark.parametrize("algorithm", ["fednh", "scaffold", "fednova"])
def test_two_processes_have_the_bits_of_two_on_the_cpu(algorithm: str, tmp_path: Path) -> None:
    found = []
    for name, device in (("cpu", "engine.device=cpu"), ("device", DEVICE)):
        words = [*TWO_ROUNDS, f"algorithm={algorithm}", device, "engine.devices=2"]
        command = [sys.executable, "-m", "fedexp.train", *words, f"hydra.run.dir={tmp_path / name}"]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        summary = json.loads((tmp_path / name / "summary.json").read_text())
        found.append((summary["weights_digest"], summary["metrics"]))
    assert found[0] == found[1]


def _with_a_break(folder: Path, *overrides: str) -> tuple[Outcome, Outcome]:
    """A whole run on the CPU, and one on the device that stops after a round and goes on."""
    Pretended.get_parallel_devices([0])
    saved = [*overrides, "checkpoint.keep=1", "checkpoint.every=1"]
    cpu = outcome(folder / "cpu", *saved, "engine.device=cpu")
    outcome(folder / "device", *saved, DEVICE, "rounds=1")
    return cpu, outcome(folder / "device", *saved, DEVICE, "resume=auto")


@pytest.mark.parametrize("algorithm", ["fednh", "scaffold", "moon", "fedgen", "fedrep", "fedmd"])
def test_a_resumed_run_has_the_bits_of_a_whole_one(
    algorithm: str, process: ProcessPoolExecutor, tmp_path: Path
) -> None:
    cpu, device = process.submit(_with_a_break, tmp_path, f"algorithm={algorithm}").result()
    assert device.weights == cpu.weights
    assert device.numbers[-1] == cpu.numbers[-1]


def test_a_model_from_the_device_is_loaded_and_exported_on_the_cpu(
    process: ProcessPoolExecutor, tmp_path: Path
) -> None:
    for name, device in (("cpu", "engine.device=cpu"), ("device", DEVICE)):
        process.submit(outcome, tmp_path / name, "algorithm=fednh", device).result()
    images = np.arange(3 * 64, dtype=np.float64).reshape(3, 8, 8) % 17
    cpu, device = (fedexp.load(tmp_path / name) for name in ("cpu", "device"))
    assert np.array_equal(device.predict_proba(images), cpu.predict_proba(images))
    export(device, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    raw = device.preparation.read(images)
    assert torch.equal(
        program(raw).argmax(dim=1), torch.tensor(cpu.predict_proba(images)).argmax(1)
    )
