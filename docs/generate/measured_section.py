"""The part of an option's page with its runs on digits beside FedAvg's."""

from generate.curve import svg
from generate.measured import GLOBAL, PERSONAL, Runs, mean_and_spread, runs
from generate.options import Option
from generate.run_plan import reason_for_none
from generate.text import escape, table

BASELINE = ("algorithm", "fedavg")
_SETTING = (
    "20 clients hold scikit-learn's digits, by Dirichlet(0.1) unless the command says otherwise; "
    "ten of them train in each of 30 rounds."
)


def measured_section(option: Option) -> str:
    """Curve, command and numbers, or the reason why there are none."""
    if reason := reason_for_none(option):
        return f"Not measured on digits: {escape(reason)}."
    own, fedavg = runs(option.group, option.name), runs(*BASELINE)
    if isinstance(own, str) or isinstance(fedavg, str):
        return f"Not measured on digits: {escape(own if isinstance(own, str) else str(fedavg))}."
    is_baseline = (option.group, option.name) == BASELINE
    both = {option.name: own} if is_baseline else {option.name: own, "fedavg": fedavg}
    parts = [
        _command(own),
        *_own_metrics(own, fedavg),
        _curves(both),
        table(("", *both), _rows(both), classes="numbers"),
        _remarks(own),
    ]
    return "\n\n".join(parts)


def _command(own: Runs) -> str:
    sweep = ["-m"] if len(own.seeds) > 1 else []
    overrides = own.command.split()[1:]
    overrides.sort(key=lambda each: not each.startswith("algorithm="))
    words = ["fedexp", *sweep, *overrides, f"seed={','.join(map(str, own.seeds))}"]
    return f"```bash\n{' '.join(words)}\n```"


def _own_metrics(own: Runs, fedavg: Runs) -> list[str]:
    """What the run logged besides FedAvg's metrics."""
    names = sorted(own.metrics - fedavg.metrics)
    listed = ", ".join(f"`{name}`" for name in names)
    return [f"It logs [besides](/numbers/index.md): {listed}."] if names else []


def _curves(both: dict[str, Runs]) -> str:
    own, *_ = both.values()
    metric = GLOBAL if own.final(GLOBAL) else PERSONAL
    curves = {name: each.curve(metric) for name, each in both.items() if each.final(metric)}
    of = "mean over seeds" if len(own.seeds) > 1 else "one seed"
    return f"```{{raw}} html\n{svg(curves, metric)}\n```\n\n`{metric}` over rounds, {of}."


def _rows(both: dict[str, Runs]) -> list[list[str]]:
    named = {
        "[accuracy of the global model](/numbers/global.md)": GLOBAL,
        "[mean accuracy of the clients' own models](/numbers/personal.md)": PERSONAL,
    }
    rows = [
        [name, *(mean_and_spread(each.final(metric)) for each in both.values())]
        for name, metric in named.items()
    ]
    fedavg = list(both.values())[-1]
    for name, key in (
        ("bytes to clients", "download_bytes"),
        ("bytes to the server", "upload_bytes"),
    ):
        rows.append([name, *(_bytes(each, fedavg, key) for each in both.values())])
    rows.append(["processor seconds", *(f"{each.total('seconds'):.1f}" for each in both.values())])
    return rows


def _bytes(own: Runs, fedavg: Runs, key: str) -> str:
    """The bytes of a run, and by how much they differ from FedAvg's."""
    sent, usual = own.total(key), fedavg.total(key)
    differs = f" ({sent / usual - 1:+.0%})" if abs(sent / usual - 1) > 0.005 else ""
    return f"{sent:,.0f}{differs}"


def _remarks(own: Runs) -> str:
    count = len(own.seeds)
    seeds = (
        f"mean ± standard deviation over {count} seeds"
        if count > 1
        else "one seed: no statement about which of the two is better"
    )
    return (
        f"{_SETTING} Accuracies are those after the last round, {seeds}. Bytes and seconds are of "
        "a whole run; seconds include the evaluation and leave out imports and figures. "
        f"Measured with fedexp {own.release}."
    )
