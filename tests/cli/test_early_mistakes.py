"""A mistake on the command line is found before anything slow is imported.

All mistakes of a test share one process, because the imports take most of its time.
"""

import json
import subprocess
import sys
from pathlib import Path

SLOW = ["torch", "lightning", "matplotlib", "sklearn", "scipy", "pandas"]
CODE = f"""
import json, sys, time
start = time.process_time()
import hydra
by_hydra = time.process_time() - start
from fedexp.train import main
found = []
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words.split()
    try:
        main()
    except SystemExit as ended:
        times = (time.process_time() - start) / by_hydra
        found.append([words, str(ended), [each for each in {SLOW} if each in sys.modules], times])
print(json.dumps(found))
"""

KEYS_AND_VALUES = {
    "roundz=3": "Could not override 'roundz'. Did you mean rounds?",
    "momentum=0.5 algorithm=scaffold optimizer=adam": "Could not override 'momentum'.",
    "sampler=nope": "sampler=nope: no such option; there are: ",
    "partition.beta=[a#b]": "partition.beta=[a#b]: cannot be read; write ",
    "--nope": "--nope: keys are written without dashes: nope=VALUE",
    "head=linear rounds=0": "rounds=0: should be greater than 0",
    "engine=vectorized local.batch_size=none": "local.batch_size=none: should be a valid integer",
    "optimizer=adam algorithm=scaffold clients.per_round=99": "clients.per_round=99: must be at ",
    "data=cifar10 checkpoint.every=-1": "checkpoint.every=-1: should be greater than or equal to 0",
    "regularizer=proximal regularizer.mu=abc": "regularizer.mu=abc: should be a valid number",
    "sampler=power_of_choice sampler.candidates=x": "sampler.candidates=x: ",
    "head=prototype head.rho=abc": "head.rho=abc: should be a valid number",
    "model=mlp model.feature_dim=abc": "model.feature_dim=abc: should be a valid integer",
    "partition.beta=abc": "partition.beta=abc: should be a valid number",
    "faults=unreliable faults.drop=abc": "faults.drop=abc: should be a valid number",
    "measure.prototypes.every=abc": "measure.prototypes.every=abc: should be a valid integer",
    "coordination=buffered coordination.buffer=x": "coordination.buffer=x: should be a valid",
    "engine=vectorized engine.clients_per_chunk=x": "engine.clients_per_chunk=x: should be a valid",
}
OF_PYTORCH = {"optimizer.lr=abc": "optimizer.lr=abc: should be a valid number"}


def first_lines(mistakes: dict[str, str], folder: Path) -> list[tuple[list[str], float]]:
    """The imported packages after each mistake, and the CPU time in imports of Hydra."""
    command = [sys.executable, "-c", CODE, json.dumps(list(mistakes))]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert [words for words, *_ in found] == list(mistakes)
    for words, line, *_ in found:
        assert line.startswith(f"fedexp: {mistakes[words]}")
    assert list(folder.rglob("*.*")) == []
    return [(packages, times) for *_, packages, times in found]


def test_a_wrong_key_option_or_value_needs_no_package(tmp_path: Path) -> None:
    found = first_lines(KEYS_AND_VALUES, tmp_path)
    assert found[-1][0] == []
    assert found[0][1] < 20  # about 6; with PyTorch and Lightning it is about 40


def test_a_wrong_value_of_an_optimizer_needs_pytorch_only(tmp_path: Path) -> None:
    found = first_lines(OF_PYTORCH, tmp_path)
    assert found[-1][0] == ["torch"]
    assert found[0][1] < 30  # about 17
