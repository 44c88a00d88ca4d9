"""The archived tables are the numbers of their files."""

import pytest
from support.result_pages import rows, section, stored

METRICS = {
    "global accuracy": "global/accuracy",
    "global loss": "global/loss",
    "PM(V)": "personal/accuracy_uniform",
    "PM(L)": "personal/accuracy_local",
    "PA": "personal/accuracy_test_split",
    "worst decile": "personal/worst_decile",
    "std": "personal/std",
}
METHODS = {
    "FedAvg": ("algorithm=fedavg", False),
    "FedNH": ("algorithm=fednh", False),
    "FedGELA, energy 10,000": ("algorithm=fedgela", False),
    "FedGELA, energy 1,000": ("algorithm=fedgela", True),
    "FedSC": ("algorithm=fedsc", False),
}
"""Row -> the run's method, and whether it sets the energy."""
CIFAR = "CIFAR-10, 60 rounds, with FedGELA and FedSC in the same federation"
THREADS = {"1": "1", "2": "2", "auto, by a trial (took 1 each time)": "auto"}


@pytest.mark.parametrize("name", METHODS)
def test_a_row_of_cifar10_is_a_run_of_the_file(name: str) -> None:
    found = rows(section("archive.md", CIFAR), f"| | {' | '.join(METRICS)} |")
    assert list(found) == list(METHODS)
    method, sets_energy = METHODS[name]
    (run,) = (
        each
        for each in stored("cifar10_methods")
        if method in each["overrides"] and ("head.energy=1000" in each["overrides"]) == sets_energy
    )
    assert run["rounds"] == 60
    finals = [run["metrics"][metric]["final"] for metric in METRICS.values()]
    # The accuracy 0.5985 of the file is one of 10,000 images and is rounded up.
    assert [float(each) for each in found[name]] == pytest.approx(finals, abs=5.1e-4)


@pytest.mark.parametrize("name", THREADS)
def test_a_row_of_the_threads_is_the_least_of_two_over_one_thread_alone(name: str) -> None:
    header = "| `engine.threads` | alone | beside another program |"
    found = rows(section("archive.md", "Threads"), header)
    assert list(found) == list(THREADS)
    measured = {
        (each["threads"], each["beside"]): each for each in stored("threads")["jobs"]["digits, MLP"]
    }
    alone = min(measured["1", False]["seconds"])
    cells = []
    for beside in (False, True):
        own = measured[THREADS[name], beside]
        assert len(own["seconds"]) == 2
        assert set(own["used"]) == {2 if name == "2" else 1}
        cells.append(f"{min(own['seconds']) / alone:.2f}")
    if name == "1":
        cells[0] = f"1 ({alone:.1f} s)"
    assert found[name] == cells
