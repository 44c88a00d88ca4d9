"""The page of a GPU in the results has the numbers of its files."""

from functools import cache
from statistics import median
from typing import Any

import pandas as pd
import pytest
from generate.results import RESULTS, ROOT
from support.result_pages import one_line, rows, section, stored

PAGE = "gpu.md"
LARGE = {"fedgela_released", "fedgela_paper"}
WAYS = {
    "hand-written loop": "hand-written",
    "`engine=serial`": "serial",
    "`engine=vectorized`": "vectorized",
    "`serial`, bf16": "serial_bf16",
    "`serial`, compiled": "serial_compiled",
}
REMARKS = {"serial_bf16": " (five rounds)", "serial_compiled": " (beside other work)"}
"""What the page adds to the seconds of ResNet-18."""
SECOND_HEADER = "| | seconds | memory, MiB | seconds | memory, MiB |\n"
CURVES = {"FedAvg": "fedavg", "FedNH": "fednh"}
ROUNDS = [10, 20, 30, 40, 50, 60, 70]


@cache
def gpu() -> dict[str, Any]:
    return dict(stored("gpu"))


@cache
def on_a_cpu(method: str) -> pd.Series:
    curves = pd.read_csv(RESULTS / "cifar10_systems.csv")
    own = curves[(curves["algorithm"] == method) & (curves["sampler"] == "random")]
    own = own[own["loss"] == ("rpcl_cpdr" if method == "fedsc" else "cross_entropy")]
    return own.set_index("round")["global/accuracy"]


def on_a_gpu(method: str) -> dict[int, float]:
    curve = gpu()["five_systems_seed0_32_bits"][method]
    return {int(number): value for number, value in curve.items()}


def rounds_of(network: str, way: str) -> dict[str, Any]:
    return dict(gpu()[f"rounds_{network}_{way}"])


def test_how_many_presets_ran_and_which_are_missing() -> None:
    presets = gpu()["presets"]
    *some, last = (f"`{name}`" for name in presets["not_run"])
    said = (
        f"It ran on {presets['agree']} of the then {presets['of']} presets before its time was "
        f"over ({', '.join(some)} and {last} are missing). All {len(presets['numbers'])} agree"
    )
    assert said in one_line(PAGE, "The same numbers as on a CPU")


def test_the_presets_agree_with_the_cpus() -> None:
    """FedAvg's and other accuracies are equal, losses nearly; two presets have large losses."""
    on_cpu = stored("presets_cpu")
    text = one_line(PAGE, "The same numbers as on a CPU")
    assert "the global accuracies are equal, and losses differ by at most 0.00001, apart" in text
    apart = set()
    for name, metrics in gpu()["presets"]["numbers"].items():
        if "global/accuracy" in metrics:
            assert metrics["global/accuracy"] == on_cpu[name]["global/accuracy"]
        losses = [key for key in metrics if "loss" in key]
        if any(abs(metrics[key] - on_cpu[name][key]) > 1e-5 for key in losses):
            apart.add(name)
    assert apart == LARGE


@pytest.mark.parametrize("check", ["two_ranks", "resume", "deterministic", "compile"])
def test_a_checked_run_has_the_plain_runs_bits(check: str) -> None:
    plain, other = gpu()[f"check_{check}"]["runs"]
    assert plain["digest"] == other["digest"]


def test_the_loss_with_bf16_is_that_of_the_file() -> None:
    plain, other = (run["loss"] for run in gpu()["check_bf16"]["runs"])
    said = f"with bf16 the loss is {other:.3f} in place of {plain:.3f}."
    assert said in one_line(PAGE, "The same numbers as on a CPU")


@pytest.mark.parametrize("name", WAYS)
def test_a_row_of_seconds_is_the_median_of_the_rounds_after_two(name: str) -> None:
    header = "| | small | | ResNet-18 | |"
    found = rows(section(PAGE, "Seconds of a round").replace(SECOND_HEADER, ""), header)
    assert list(found) == list(WAYS)
    small, resnet = (rounds_of(network, WAYS[name]) for network in ("small", "resnet18"))
    for each in (small, resnet):
        assert each["median"] == median(each["seconds"][2:])
    assert found[name] == [
        f"{small['median']:.3f}",
        f"{small['peak_mib']:,.0f}",
        f"{resnet['median']:.3f}{REMARKS.get(WAYS[name], '')}",
        f"{resnet['peak_mib']:,.0f}",
    ]


def test_the_ratios_to_the_hand_written_loop_follow_from_the_medians() -> None:
    ratios = {
        way: [
            f"{rounds_of(each, way)['median'] / rounds_of(each, 'hand-written')['median']:.2f}"
            for each in ("small", "resnet18")
        ]
        for way in ("vectorized", "serial")
    }
    said = (
        "`vectorized` takes {} of the loop's time for the small network and {} for ResNet-18, "
        "where `serial` takes {} and {}."
    ).format(*ratios["vectorized"], *ratios["serial"])
    assert said in one_line(PAGE, "Seconds of a round")


def test_a_step_takes_the_seconds_of_a_round_over_its_steps() -> None:
    steps = 10 * 5 * -(-500 // 64)
    serial, loop = (
        rounds_of("small", way)["median"] / steps * 1000 for way in ("serial", "hand-written")
    )
    said = f"A step of `serial` takes {serial:.0f} ms, of the hand-written loop {loop:.0f} ms"
    assert said in one_line(PAGE, "Seconds of a round")


def test_to_compile_is_the_first_round_less_another() -> None:
    compiled = rounds_of("resnet18", "serial_compiled")
    extra = compiled["seconds"][0] - compiled["median"]
    assert f"To compile ResNet-18 took {extra:.0f} s." in one_line(PAGE, "Seconds of a round")


def test_a_round_waits_as_often_as_the_page_says() -> None:
    text = one_line(PAGE, "Seconds of a round")
    assert "waits eleven times for the GPU with `serial`" in text
    assert "and twice with `vectorized`" in text
    for network in ("small", "resnet18"):
        assert rounds_of(network, "serial")["waits"] == 11
        assert rounds_of(network, "vectorized")["waits"] == 2


def test_few_clients_are_those_of_the_file() -> None:
    found = rows(section(PAGE, "Seconds of a round"), "| clients a round | 2 | 3 | 4 | 6 |")
    for engine in ("serial", "vectorized"):
        seconds = [gpu()["few_clients"][f"{count} clients, {engine}"] for count in (2, 3, 4, 6)]
        assert found[f"`{engine}`"] == [f"{each:.3f}" for each in seconds]


def test_three_clients_are_enough_for_a_stack() -> None:
    seconds = gpu()["few_clients"]
    faster = {
        count: seconds[f"{count} clients, vectorized"] < seconds[f"{count} clients, serial"]
        for count in (2, 3, 4, 6)
    }
    assert faster == {2: False, 3: True, 4: True, 6: True}
    assert "From three clients on a stack is faster." in one_line(PAGE, "Seconds of a round")
    engines = (ROOT / "docs" / "concepts" / "engines.md").read_text()
    assert "On a GPU with CUDA three clients are enough" in engines


def test_a_whole_run_is_that_of_the_file() -> None:
    own = gpu()["fednh_table1_seed3"]
    seconds, final = own["seconds"], own["final"]
    text = one_line(PAGE, "A whole run")
    # The file has tenths: 133.5 may be a little less.
    assert seconds["time/train_s"] == pytest.approx(133, abs=0.55)
    said = "133 s of training, {:.0f} s of evaluation, {} s with start, loading and figures."
    assert said.format(seconds["time/eval_s"], own["whole"]) in text
    equal = rounds_of("small", "vectorized")["median"]
    per_round = seconds["time/train_s"] / 200
    assert f"A round takes {per_round:.2f} s. The {equal:.2f} s above are another job" in text
    said = (
        f"global accuracy {final['global/accuracy']:.3f} (the paper 0.690); the cohort's PM(L) "
        f"{final['cohort/accuracy_local']:.3f} (the paper 0.846) and PM(V) "
        f"{final['cohort/accuracy_uniform']:.3f} (the paper 0.650)."
    )
    assert said in text


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_with_32_bits_stands_beside_the_cpus(name: str) -> None:
    header = f"| global accuracy in round | {' | '.join(map(str, ROUNDS))} |"
    found = rows(section(PAGE, "A whole run"), header)
    own = on_a_gpu(CURVES[name])
    for row, curve in (
        (f"{name}, GPU, 32 bits", own),
        (f"{name}, CPU, bf16", on_a_cpu(name.lower())),
    ):
        assert found[row] == [f"{curve[each]:.3f}" if each in own else "" for each in ROUNDS]


def test_how_far_fedsc_with_32_bits_is_from_the_cpus() -> None:
    apart = {
        each: abs(value - on_a_cpu("fedsc")[each]) for each, value in on_a_gpu("fedsc").items()
    }
    first = apart.pop(10)
    said = (
        f"FedSC differs by {first:.3f} in round 10, and by {max(apart.values()):.3f} at most in "
        "rounds 20 to 50"
    )
    assert list(apart) == [20, 30, 40, 50]
    assert said in one_line(PAGE, "A whole run")
