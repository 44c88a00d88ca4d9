"""The ``paper:`` rows of the presets against the papers' own tables, kept in ``published/``."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedexp.cli.command import config_folder

PRESETS = Path(config_folder()) / "experiment"
Row = tuple[str, str, str, tuple[str, ...], str]  # table, metric, statistic, overrides, method
Rows = dict[Row, float]

OF_FEDNH = ("FedAvg", "FedPer", "Ditto", "FedRep", "FedProto", "CReFF", "FedBABU", "FedROD")
OF_FEDNH += ("FedNH",)
OF_FEDGELA = ("FedAvg", "FedProx", "MOON", "FedRS", "FedGen", "FedLC", "FedRep", "FedProto")
OF_FEDGELA += ("FedBABU", "FedRod", "FedGELA")
OF_FEDSC = ("fedavg", "fedprox", "moon", "fedntd", "fedproto", "fednh", "fedrcl", "fedcda", "fedsc")
FINAL, BEST, LAST5 = "final", "best", "mean_last5"
GLOBAL, PERSONAL = "global/accuracy", "personal/accuracy_test_split"


def tables(paper: str) -> dict[str, Any]:
    content = (Path(__file__).parent / "published" / f"{paper}.yaml").read_text()
    found: dict[str, Any] = yaml.safe_load(content)
    return found


def in_preset(name: str) -> Rows:
    rows: Rows = {}
    for row in yaml.safe_load((PRESETS / f"{name}.yaml").read_text()).get("paper", []):
        for method, number in row["values"].items():
            overrides = tuple(row.get("overrides", ()))
            key = (row["table"], row["metric"], row["statistic"], overrides, method)
            assert key not in rows, key
            rows[key] = number
    return rows


def spread_in_preset(name: str) -> Rows:
    rows = yaml.safe_load((PRESETS / f"{name}.yaml").read_text())["paper"]
    return {
        (row["table"], row["metric"], row["statistic"], tuple(row.get("overrides", ())), method): s
        for row in rows
        for method, s in row.get("spread", {}).items()
    }


def algorithm(name: str) -> str:
    name = name.lower()
    return f"algorithm={'fedproto_global' if name == 'fedproto' else name}"


def column(
    table: str,
    metric: str,
    statistic: str,
    numbers: Iterable[tuple[str, float | None]],
    *overrides: str,
    scale: float = 0.01,
) -> Rows:
    """One column of a table; cells without a number are left out."""
    return {
        (table, metric, statistic, overrides, method): number * scale
        for method, number in numbers
        if number is not None
    }


@pytest.mark.parametrize(
    ("cell", "data", "first"),
    [
        ("cifar10_dir03", "cifar10", 0),
        ("cifar10_dir10", "cifar10", 4),
        ("cifar100_dir03", "cifar100", 0),
        ("cifar100_dir10", "cifar100", 4),
        ("tiny_dir03", "tiny_imagenet", 0),
        ("tiny_dir10", "tiny_imagenet", 4),
    ],
)
def test_fednh(cell: str, data: str, first: int) -> None:
    expected: Rows = {}
    spread: Rows = {}
    for table, name, others in (("table_1", "Table 1", ()), ("table_3", "Table 3", (30,))):
        overrides = [f"clients.per_round={number}" for number in others]
        methods = tables("fednh")[table][data]
        shown = [m for m in ("Local", *OF_FEDNH) if m in methods]
        for place, metric in ((0, GLOBAL), (2, "accuracy_uniform"), (3, "accuracy_local")):
            metric = metric if place == 0 else f"personal/{metric}"
            numbers = [(f"algorithm={m.lower()}", methods[m][first + place]) for m in shown]
            expected |= column(name, metric, FINAL, numbers, *overrides)
        deviations = [(f"algorithm={m.lower()}", methods[m][first + 1]) for m in shown]
        spread |= column(name, GLOBAL, FINAL, deviations, *overrides)
    if first == 0:
        place = ("cifar10", "cifar100", "tiny_imagenet").index(data)
        table_2 = tables("fednh")["table_2"]
        shown = [m for m in ("Local", *OF_FEDNH) if m in table_2]
        numbers = [(f"algorithm={m.lower()}", table_2[m][place][1]) for m in shown]
        expected |= column("Table 2", "personal/std", FINAL, numbers)
    assert in_preset(f"fednh/{cell}") == pytest.approx(expected)
    assert spread_in_preset(f"fednh/{cell}") == pytest.approx(spread)


@pytest.mark.parametrize("data", ["fmnist", "cifar10", "cifar100"])
@pytest.mark.parametrize("skew", ["dir001", "dir004"])
def test_fedptr(data: str, skew: str) -> None:
    published, cell = tables("fedptr"), f"{data}_{skew}"
    methods = [f"algorithm={name}" for name in published["order"]]
    expected: Rows = {}
    for ratio, overrides in (
        (100, ()),
        (50, ("clients.per_round=5",)),
        (30, ("clients.per_round=3",)),
    ):
        numbers = zip(methods, published["table1"][f"ratio_{ratio}"][cell], strict=True)
        expected |= column("Table 1", GLOBAL, LAST5, numbers, *overrides)
    if skew == "dir001":
        place = ("fmnist", "cifar10", "cifar100").index(data)
        rows = [(f"algorithm={name}", v[place]) for name, v in published["table12"].items()]
        expected |= column("Table 12", GLOBAL, LAST5, rows)
    if cell == "cifar100_dir004":
        attacked = ("algorithm=fedavg", "algorithm=feddyn", "algorithm=fedptr")
        for attack, accuracies in published["table10"].items():
            rows = list(zip(attacked, accuracies, strict=True))
            metric = f"membership/{attack}_accuracy"
            both = ("+measure=membership", "measure.membership.attack=lira")
            expected |= column("Table 10", metric, FINAL, rows, *both)
    for table, numbers, method in fedptr_ablations(published, data, cell):
        expected |= column(table, GLOBAL, LAST5, numbers, f"algorithm={method}")
    assert in_preset(f"fedptr/{cell}") == pytest.approx(expected)


def fedptr_ablations(
    published: dict[str, Any], data: str, cell: str
) -> Iterator[tuple[str, list[tuple[str, float | None]], str]]:
    """(table, override and number, method)."""
    if cell.endswith("dir001"):
        place = ("fmnist", "cifar10", "cifar100").index(data)
        starts = [("noise", "random_init"), ("images", "own_images")]
        rows = published["table5"]
        yield "Table 5", [(f"regularizer.init={k}", rows[n][place]) for k, n in starts], "fedptr"
    if cell in published["table4"]["columns"]:
        place = published["table4"]["columns"].index(cell)
        forms = [("false", "fixed_lambda"), ("true", "adaptive")]
        rows = published["table4"]
        yield "Table 4", [(f"regularizer.adaptive={k}", rows[n][place]) for k, n in forms], "fedptr"
    if cell in published["table6"]:
        steps = zip((5, 10, 20, 30), published["table6"][cell], strict=True)
        yield "Table 6", [(f"regularizer.outer_steps={h}", x) for h, x in steps], "fedptr_s"
    if cell in ("cifar10_dir001", "cifar100_dir001"):
        classes = {"cifar10": 10, "cifar100": 100}[data]
        sizes = published["table3"][data].items()
        yield "Table 3", [(f"regularizer.ipc={n // classes}", x) for n, x in sizes], "fedptr"
    if cell == "cifar10_dir001":
        every = {"every_1": 1, "every_4": 4, "every_10": 10, "every_40": 40, "once": "null"}
        rows = published["table7"].items()
        yield "Table 7", [(f"regularizer.update_every={every[k]}", x) for k, x in rows], "fedptr_s"
        sizes = published["table8"].items()
        yield "Table 8", [(f"regularizer.ipc={n // 10}", x) for n, x in sizes], "fedptr_s"


@pytest.mark.parametrize(
    "cell", ["cifar100_dir001", "fmnist_dir004", "cifar10_dir004", "cifar100_dir004"]
)
def test_fedptr_with_40_clients(cell: str) -> None:
    published = tables("fedptr")
    methods = [f"algorithm={name}" for name in published["order"]]
    numbers = zip(methods, published["table2"][cell], strict=True)
    expected = column("Table 2", GLOBAL, LAST5, numbers)
    assert in_preset(f"fedptr/{cell}_40clients") == pytest.approx(expected)


def test_fedptr_on_tiny_imagenet() -> None:
    published = tables("fedptr")
    methods = [f"algorithm={name}" for name in published["order"]]
    expected = column("Table 9", GLOBAL, LAST5, zip(methods, published["table9"], strict=True))
    assert in_preset("fedptr/tiny_dir001") == pytest.approx(expected)


# gamma_c is the population's for exp and sqrt; for linear the paper fixes it at C.
PHI = {q: f"head.phi={q} head.phi_normalization=population" for q in ("exp", "sqrt")}
PHI["linear"] = "head.phi=linear"
GLOBAL_MODELS = ("FedAvg", "FedProx", "MOON", "FedRS", "FedGen", "FedLC")
PLACES = ["iid", "dir05", "dir01", "50clients_iid", "50clients_dir05", "50clients_dir02"]


def of_fedgela(method: str) -> str:
    """PA of the methods with a global model is that of the best one, tuned at each client."""
    tuned = " personalization=finetune_best" if method in GLOBAL_MODELS else ""
    return f"algorithm={method.lower()}{tuned}"


@pytest.mark.parametrize("data", ["svhn", "cifar10", "cifar100"])
@pytest.mark.parametrize("place", range(6))
def test_fedgela(data: str, place: int) -> None:
    published = tables("fedgela")
    rows = published["table2"][data]
    without_global = ("FedRep", "FedProto")

    def numbers(index: int, *methods: str) -> list[tuple[str, float | None]]:
        return [(of_fedgela(m), rows[m][place][index]) for m in methods]

    with_global = [m for m in OF_FEDGELA if m not in without_global]
    expected = column("Table 2", PERSONAL, BEST, numbers(0, *OF_FEDGELA))
    expected |= column("Table 2", GLOBAL, BEST, numbers(1, *with_global))
    expected |= column("Table 2", "personal/accuracy_whole", BEST, numbers(1, *without_global))
    if data == "svhn" and place < 3:
        for index, metric in enumerate((PERSONAL, GLOBAL)):
            forms = [(PHI[q], v[place][index]) for q, v in published["table6"].items()]
            expected |= column("Table 6", metric, BEST, forms, "algorithm=fedgela")
    if data == "cifar10":
        target = round(rows["FedAvg"][place][1] / 100, 4)
        # FedAvg's own number is the length of its run.
        others = {m: row for m, row in published["table9"].items() if m != "FedAvg"}
        rounds = [(f"algorithm={m.lower()}", row[place]) for m, row in others.items()]
        overrides = (f"measure.global.targets=[{target:g}]", f"rounds={100 if place < 3 else 200}")
        expected |= column("Table 9", f"rounds_to/{target:g}", FINAL, rounds, *overrides, scale=1)
    assert in_preset(f"fedgela/{data}_{PLACES[place]}") == pytest.approx(expected)


@pytest.mark.parametrize("cell", ["cifar10_P10C2", "cifar10_P50C2", "svhn_P10C2", "svhn_P50C2"])
def test_fedgela_pure_classes(cell: str) -> None:
    rows = tables("fedgela")["table5"][cell]
    expected: Rows = {}
    for index, metric in enumerate((PERSONAL, GLOBAL)):
        numbers = [(of_fedgela(m), rows[m][index]) for m in ("FedAvg", "FedGELA")]
        expected |= column("Table 5", metric, BEST, numbers)
    assert in_preset(f"fedgela/{cell.lower()}") == pytest.approx(expected)


def test_fedgela_on_fed_isic() -> None:
    """Mean and deviation of PA, then of GA; the latter is that of local models without a global."""
    published = tables("fedgela")
    rows, without_global = published["table3_isic"], ("FedRep", "FedProto")
    others = [m for m in OF_FEDGELA if m not in without_global]
    places = ((PERSONAL, OF_FEDGELA, 0), (GLOBAL, others, 2))
    places += (("personal/accuracy_whole", without_global, 2),)
    expected: Rows = {}
    spread: Rows = {}
    for metric, methods, place in places:
        for found, index in ((expected, place), (spread, place + 1)):
            numbers = [(of_fedgela(m), rows[m][index]) for m in methods]
            found |= column("Table 3", metric, BEST, numbers)
    halves = {"algorithm=fedge": "GE", "algorithm=fedla": "LA"}
    for index, metric in enumerate((PERSONAL, GLOBAL)):
        numbers = [(name, published["table4_isic"][row][index]) for name, row in halves.items()]
        expected |= column("Table 4", metric, BEST, numbers)
    assert in_preset("fedgela/isic") == pytest.approx(expected)
    assert spread_in_preset("fedgela/isic") == pytest.approx(spread)


@pytest.mark.parametrize("data", ["femnist", "shakespeare"])
def test_fedgela_on_leaf(data: str) -> None:
    """Table 11 has a column of the best baseline, too, which it does not name."""
    rows = tables("fedgela")["table11"][data]
    expected: Rows = {}
    for index, metric in enumerate((PERSONAL, GLOBAL)):
        numbers = [(of_fedgela(m), rows[m][index]) for m in ("FedAvg", "FedGELA")]
        expected |= column("Table 11", metric, BEST, numbers)
    assert in_preset(f"fedgela/{data}") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("data", "table", "metric"),
    [
        ("tiny", "tinyimagenet", GLOBAL),
        ("fc100", "fc100_5way_5shot", "global/fewshot_accuracy"),
    ],
)
@pytest.mark.parametrize("place", range(3))
def test_fedsc_on_other_data(data: str, table: str, metric: str, place: int) -> None:
    rows = tables("fedsc")["table1"][table]
    numbers = [(algorithm(m), rows[m][place]) for m in OF_FEDSC]
    expected = column("Table 1", metric, FINAL, numbers)
    preset = f"fedsc/{data}_{('dir005', 'dir02', 'nid2')[place]}"
    assert in_preset(preset) == pytest.approx(expected)


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
@pytest.mark.parametrize("place", range(3))
def test_fedsc(data: str, place: int) -> None:
    published, skew = tables("fedsc"), ("dir005", "dir02", "nid2")[place]
    rows = published["table1"][data]
    numbers = [(algorithm(m), rows[m][place]) for m in OF_FEDSC]
    expected = column("Table 1", GLOBAL, FINAL, numbers)
    if skew == "dir02":
        (rows,) = [v for name, v in published["table3"].items() if name.startswith(f"{data}_")]
        targets = (0.2, 0.4, 0.8) if data == "cifar10" else (0.2, 0.4, 0.6)
        for index, target in enumerate(targets):
            rounds = [(algorithm(m), rows[m][index]) for m in OF_FEDSC if m in rows]
            expected |= column("Table 3", f"rounds_to/{target}", FINAL, rounds, scale=1)
    if data == "cifar10":
        index = (0, 1, 3)[place]
        rows = published["table4"]["cifar10_nid1_0.05_0.2_0.5_nid2_avg"]
        expected |= column("Table 4", GLOBAL, FINAL, one_term(rows, index), "algorithm=fedsc")
        if skew == "dir02":
            metrics = [(f"loss.metric={m}", x) for m, x in published["table5"].items()]
            expected |= column("Table 5", GLOBAL, FINAL, metrics, "algorithm=fedsc")
    assert in_preset(f"fedsc/{data}_{skew}") == pytest.approx(expected)


def one_term(rows: dict[str, list[float]], index: int) -> list[tuple[str, float | None]]:
    """FedSC with one of its two terms."""
    return [
        ("loss.cpdr_weight=0", rows["rpcl"][index]),
        ("loss.rpcl_weight=0", rows["cpdr"][index]),
    ]


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "tiny"])
def test_fedsc_long_tail(data: str) -> None:
    published = tables("fedsc")
    table = "tinyimagenet_lt" if data == "tiny" else f"{data}_lt"
    expected: Rows = {}
    for index, rho in enumerate((10, 50, 100, 200)):
        rows, tail = published["table2"][table], f"partition.long_tail={rho}"
        numbers = [(algorithm(m), rows[m][index]) for m in OF_FEDSC]
        expected |= column("Table 2", GLOBAL, FINAL, numbers, tail)
        if data == "cifar10":
            rows = published["table4"]["cifar10_lt_rho_10_50_100_200_avg"]
            numbers = one_term(rows, index)
            expected |= column("Table 4", GLOBAL, FINAL, numbers, "algorithm=fedsc", tail)
    assert in_preset(f"fedsc/{data}_lt") == pytest.approx(expected)


@pytest.mark.parametrize(
    ("data", "target", "own", "longer"),
    [
        ("fmnist", 0.75, "hics", 600),
        ("cifar10", 0.6, "hics_cifar10", 1500),
        ("cifar100", 0.3, "hics_cifar100", 1500),
    ],
)
def test_hics(data: str, target: float, own: str, longer: int) -> None:
    """Baselines ran longer than the T that is also the horizon of HiCS-FL's gamma."""
    samplers = ["weighted", "power_of_choice_ideal", "clustered", "divfl_ideal", own]
    rounds = tables("hics")[f"table1_{data}"]["rounds"]
    numbers = [(f"sampler={s}", x) for s, x in zip(samplers, rounds, strict=True)]
    table, metric = "Table 1", f"rounds_to/{target}"
    expected = column(table, metric, FINAL, numbers[:-1], f"rounds={longer}", scale=1)
    expected |= column(table, metric, FINAL, numbers[-1:], scale=1)
    assert in_preset(f"hics/{data}_setting2") == pytest.approx(expected)
