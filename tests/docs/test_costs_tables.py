"""The tables of costs in the results are the numbers of their files."""

from statistics import median
from typing import Any

import pytest
from generate.results import RESULTS, ROOT
from support.result_pages import one_line, prose, rows, section, stored

PAGE = "costs.md"
DIGITS, CIFAR = "digits, MLP, 100 clients", "CIFAR-10, conv2cifar, 10 clients"
ENGINES = [
    "raw loop",
    "serial",
    "serial, channels_last",
    "serial, 1 thread",
    "serial, 2 processes",
    "serial, bf16-mixed",
    "serial, compiled",
    "trainer",
    "vectorized",
    "vectorized, 2 processes",
]
PEERS = {
    "raw loop": "raw loop",
    "fedexp 0.3.0, serial": "fedexp, serial",
    "fedexp 0.3.0, vectorized": "fedexp, vectorized",
    "Flower 1.41.0": "Flower",
    "pfl-research 0.6.0": "pfl-research",
    "fluke 0.8.1": "fluke",
}
WAYS = {
    "plain loop": "plain loop",
    "forward passes": "forward passes",
    "all metrics": "all metrics",
    "all metrics, bf16-mixed": "all metrics, bf16-mixed",
    "held, Dirichlet(0.3)": "uniform, local, test_split; Dirichlet(0.3)",
    "held, Dirichlet(0.1)": "uniform, local, test_split; Dirichlet(0.1)",
    "held, two classes a client": "uniform, local, test_split; two classes a client",
    "all metrics, `measure.personal.samples=1000`": "all metrics on 1000 samples",
}
METHODS = {"FedAvg": "fedavg", "HiCS-FL": "hics", "SCAFFOLD": "scaffold"}
WORKERS = ("1 thread", "2 processes")
POPULATION = (
    "| method | clients | set-up | round | its ratio to 1,000 clients | last round with figures "
    "| checkpoint | resume | peak memory |"
)


def jobs(kind: str = "jobs") -> dict[tuple[str, str], dict[str, Any]]:
    return {(each["job"], each["name"]): each for each in stored("bench_cpu")[kind]}


def table(title: str, header: str) -> list[list[str]]:
    """The cells of all rows of a section's table, whose first cells may be equal."""
    lines = section(PAGE, title).partition(f"{header}\n")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in lines[1:]]


@pytest.mark.parametrize("name", ENGINES)
def test_a_row_of_the_engines_is_that_of_the_file(name: str) -> None:
    found = rows(section(PAGE, "Engines"), f"| engine | {DIGITS} | {CIFAR} |")
    assert list(found) == ENGINES
    own = [jobs()[job, name] for job in (DIGITS, CIFAR)]
    if name == "raw loop":
        assert found[name] == [f"1 ({each['seconds']:.2f} s)" for each in own]
    else:
        assert found[name] == [f"{each['ratio']:.2f}" for each in own]


def test_the_engines_have_the_memory_format_and_the_threads_that_the_page_says() -> None:
    without = {"raw loop", "serial", "vectorized", "vectorized, 2 processes"}
    for (_, name), each in jobs().items():
        assert f"engine.channels_last={str(name not in without).lower()}" in each["overrides"]
        assert each["processes"] == (2 if "2 processes" in name else 1)
        assert each["threads"] == (1 if "2 processes" in name or "1 thread" in name else 2)


def test_two_processes_are_compared_with_one_of_one_thread() -> None:
    def faster(kind: str, job: str = CIFAR) -> float:
        ratios = [jobs(kind)[job, f"serial, {each}"]["ratio"] for each in WORKERS]
        return ratios[0] / ratios[1]

    said = (
        f"With conv2cifar two processes are {faster('jobs'):.2f} times as fast as one of one "
        "thread; when only these two are measured (`--only processes --repeats 6`) "
        f"{faster('processes'):.2f}, and on digits {faster('processes', DIGITS):.2f}."
    )
    assert said in one_line(PAGE, "Engines")


@pytest.mark.parametrize("name", PEERS)
def test_a_row_of_the_peers_is_that_of_the_file(name: str) -> None:
    found = rows(section(PAGE, "Peers"), f"| | {DIGITS} | {CIFAR} of 500 images |")
    assert list(found) == [*PEERS, "PFLlib, FL-bench"]
    own = [each for each in stored("peers")["rows"] if each["name"] == PEERS[name]]
    assert [each["job"] for each in own] == [DIGITS, f"{CIFAR} of 500"]
    assert all(len(each["seconds"]) == 5 for each in own)
    if name == "raw loop":
        assert found[name] == [f"1 ({each['median']:.2f} s)" for each in own]
    else:
        assert name.split(",")[0].endswith(("0.3.0", own[0]["version"]))
        assert found[name] == [f"{each['ratio']:.2f}" for each in own]


def test_a_peers_ratio_is_that_of_the_medians_and_the_losses_are_the_pages() -> None:
    ran = [each for each in stored("peers")["rows"] if each["seconds"]]
    raw = {each["job"]: each for each in ran if each["name"] == "raw loop"}
    assert "Medians of the last four of five rounds" in one_line(PAGE, "Peers")
    for each in ran:
        assert each["median"] == pytest.approx(median(each["seconds"][1:]))
        assert each["ratio"] == pytest.approx(each["median"] / raw[each["job"]]["median"])
    apart = [each for each in ran if abs(each["loss"] - raw[each["job"]]["loss"]) > 0.01]
    assert [each["name"] for each in apart] == ["pfl-research"]
    others = {f"{each['loss']:.2f}" for each in ran if "CIFAR" in each["job"]} - {"2.30"}
    said = f"pfl-research {apart[0]['loss']:.3f} in the second job, where the others have "
    assert said + " or ".join(sorted(others)) in one_line(PAGE, "Peers")


@pytest.mark.parametrize("name", WAYS)
def test_a_row_of_the_evaluation_is_that_of_the_file(name: str) -> None:
    half = "test samples a model | {}"
    header = f"| | {half.format('CIFAR-10, conv2cifar')} | {half.format('digits, MLP')} |"
    found = rows(section(PAGE, "Evaluation of personal models"), header)
    assert list(found) == list(WAYS)
    cells = []
    for job, form, unit in (("CIFAR-10, conv2cifar", ".2f", 1), ("digits, MLP", ".1f", 1000)):
        own = {each["way"]: each for each in stored("evaluation")[job]["rows"]}.get(WAYS[name])
        if own is None:
            cells += ["", ""]
            continue
        seconds = f"{own['cpu_seconds_per_model'] * unit:{form}} {'s' if unit == 1 else 'ms'}"
        shown = f"1 ({seconds})" if name == "plain loop" else f"{own['ratio']:.2f}"
        cells += [f"{own['samples']:.0f}", shown]
    assert found[name] == cells


def test_the_growth_is_that_of_the_file() -> None:
    cells: dict[tuple[int, int], dict[str, dict[str, float]]] = {}
    for each in stored("bench_cpu")["growth"]:
        cells.setdefault((each["population"], each["cohort"]), {})[each["engine"]] = each
    header = "| population | cohort | serial | vectorized | peak memory, serial and vectorized |"
    assert table("Growth", header) == [
        [
            f"{population:,}",
            f"{cohort:,}",
            *(f"{own[engine]['seconds']:.3f} s" for engine in ("serial", "vectorized")),
            ", ".join(f"{own[engine]['peak_mib']:.0f}" for engine in ("serial", "vectorized"))
            + " MiB",
        ]
        for (population, cohort), own in cells.items()
    ]


@pytest.mark.parametrize("name", METHODS)
def test_the_rows_of_a_method_with_a_million_clients_are_those_of_the_file(name: str) -> None:
    found = [row[1:] for row in table("A million clients", POPULATION) if row[0] == name]
    own = [each for each in stored("population")["results"] if each["method"] == METHODS[name]]
    ratio = stored("population")["round_cpu_ratio"][METHODS[name]]
    assert found == [population_row(each, ratio) for each in own]
    assert f"{own[1]['round']['cpu_seconds'] / own[0]['round']['cpu_seconds']:.2f}" == f"{ratio}"


def population_row(own: dict[str, Any], ratio: float) -> list[str]:
    def seconds(part: str, digits: int = 2) -> str:
        return f"{own[part]['seconds']:.{digits}f} s"

    return [
        f"{own['clients']:,}",
        seconds("set-up", 1),
        seconds("round"),
        "1" if own["clients"] == 1000 else f"{ratio}",
        seconds("last round with its figures"),
        f"{own['checkpoint_mib']} MiB, {seconds('checkpoint')}",
        seconds("resume"),
        f"{own['peak_mib']} MiB",
    ]


def test_a_million_clients_resume_to_the_bit_and_importing_is_a_part_of_their_memory() -> None:
    results = stored("population")["results"]
    assert all(each["resumed_to_the_bit"] for each in results)
    (imports,) = {each["of_it_imports_mib"] for each in results}
    assert f"what importing fedexp takes ({imports} MiB)" in one_line(PAGE, "A million clients")


def test_the_samplers_are_those_of_the_file() -> None:
    own = {(each["sampler"], each["clients"]): each for each in stored("samplers")["results"]}
    expected = []
    for clients in (2000, 100_000):
        cheap = [own[name, clients] for name in ("random", "weighted")]
        seconds = max(each["seconds"] for each in cheap)
        (peak,) = {each["peak_mib"] for each in cheap}
        expected.append(["random, weighted", clients, f"at most {seconds}", peak])
    for name, clients in (("exact", 2000), ("landmarks", 2000), ("landmarks", 100_000)):
        each = own[f"hics, {name}", clients]
        shown = f"HiCS-FL, {name.replace('landmarks', 'sketch')}"
        expected.append([shown, clients, f"{each['seconds']:.2f}", each["peak_mib"]])
    assert table("Samplers", "| sampler | population | seconds a round | peak memory |") == [
        [name, f"{clients:,}", seconds, f"{peak} MiB"] for name, clients, seconds, peak in expected
    ]
    (imports,) = {each["import_mib"] for each in own.values()}
    assert f"Importing fedexp takes {imports} MiB of it" in section(PAGE, "Samplers")


def test_the_reports_are_those_of_the_file() -> None:
    own = stored("report")
    assert table("Reports", "| runs | seconds | over imports alone |") == [
        [runs, f"{seconds:.1f}", f"{seconds / own['imports']:.2f}"]
        for runs, seconds in own["seconds"].items()
    ]
    assert f"over those of importing it ({own['imports']:.1f} s)" in one_line(PAGE, "Reports")


def test_the_largest_load_that_is_named_is_that_of_the_files() -> None:
    cifar = stored("evaluation")["CIFAR-10, conv2cifar"]["load_average_before_and_after"][0]
    largest = max(cifar, stored("population")["setting"]["load"])
    intro = prose((RESULTS / PAGE).read_text().partition("\n## ")[0])
    assert f"at most {largest:.1f} before the last two" in intro


@pytest.mark.parametrize("name", ["K = 8", "K = 10", "K = 10, iid", "K = 20", "K = 50"])
def test_stacking_is_faster_within_the_bounds_of_the_engines_page(name: str) -> None:
    page = (ROOT / "docs" / "concepts" / "engines.md").read_text()
    assert "at least 8 clients in a round, the forward pass of a step has at most 4 MFLOP" in page
    cell = stored("engines")["cells"][name]
    assert cell["mflop"] <= 4
    assert cell["vectorized"] < cell["serial"]
    assert cell["ratio"] == pytest.approx(cell["vectorized"] / cell["serial"])


@pytest.mark.parametrize("name", ["K = 3", "K = 10, wide"])
def test_stacking_is_slower_far_outside_of_these_bounds(name: str) -> None:
    cell = stored("engines")["cells"][name]
    assert cell["vectorized"] > cell["serial"]
