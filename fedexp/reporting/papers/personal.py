"""The metric that each paper calls personal accuracy."""

from fedexp.reporting.table import Table

_ROWS = [
    [
        "FedNH",
        "PM(V); PM(L)",
        "personal/accuracy_uniform; personal/accuracy_local",
        "measure.personal.of=all; the released code logs cohort/*",
    ],
    ["FedSC", "none", "", ""],
    [
        "FedGELA",
        "PA",
        "personal/accuracy_test_split, best round",
        "personalization=finetune_best for fedavg, fedprox, moon, fedrs, fedgen and fedlc",
    ],
    ["FedPTR", "none", "", ""],
    ["HiCS-FL", "none", "", ""],
]


def personal_table() -> Table:
    """A row for each paper: its name for personal accuracy, our metric, and the needed options."""
    return Table(
        "Personal accuracy in the papers",
        ["paper", "its name", "metric", "needs"],
        [list(row) for row in _ROWS],
        optional=("needs",),
    )
