"""All methods on one page, in a table that the reader can sort."""

from statistics import fmean

from generate.citation import year
from generate.measured import GLOBAL, PERSONAL, runs
from generate.options import Option, default, options
from generate.text import escape, sentence, table
from generate.yaml_comments import Key

_SOCKETS = ("head", "loss", "regularizer", "gradient", "personalization", "sampler", "aggregator")
_HEADER = (
    "method",
    "socket",
    "optimizer",
    "sets besides its parts",
    "year",
    "accuracy",
    "personal",
    "MB",
    "seconds",
)

_BEFORE = """\
# All methods

Each row is a preset of `algorithm=`, run on digits: 20 clients, Dirichlet(0.1), ten clients in each
of 30 rounds, with the defaults of its options. Nothing was tuned for this task. So the table shows
what methods cost and that they run, not which one is best. A click on a column's name sorts by it.
"""

_AFTER = """\
*optimizer*, *sets besides its parts*: [what a preset may
set](/concepts/sockets.md). [`sgd`](/options/optimizer/sgd.md) has momentum 0.9 and is this
project's default, which a method has unless it chooses another one; authors often use SGD without
momentum, [`sgd_plain`](/options/optimizer/sgd_plain.md). *accuracy*: of the global model after the
last round. *personal*: mean accuracy of the clients' own models on their classes. Both are means
over the seeds. *MB*: 10⁶ bytes in both directions over the whole run. *seconds*: processor seconds
of a run. [What every number means](/numbers/index.md). An empty cell was not measured: without a
global model there is no global accuracy.
"""


def gallery() -> str:
    """The page as MyST Markdown."""
    rows = [_row(each) for each in options("algorithm")]
    return "\n\n".join([_BEFORE, table(_HEADER, rows, classes="sortable"), _AFTER]) + "\n"


def _row(option: Option) -> list[str]:
    found = runs("algorithm", option.name)
    numbers = ["", "", "", ""]
    if not isinstance(found, str):
        accuracies = (found.final(metric) for metric in (GLOBAL, PERSONAL))
        total = found.total("download_bytes") + found.total("upload_bytes")
        numbers = [
            *(f"{fmean(values):.3f}" if values else "" for values in accuracies),
            f"{total / 1e6:.1f}",
            f"{found.total('seconds'):.1f}",
        ]
    sockets = [group for group, _ in option.choices if group in _SOCKETS]
    optimizer = dict(option.choices).get("optimizer", default("optimizer"))
    idea = sentence(option.summary).partition(": ")[2] or sentence(option.summary)
    return [
        f"[{option.name}](/{option.page}.md)<small>{escape(idea)}</small>",
        ", ".join(sockets),
        optimizer,
        "<br>".join(f"`{each.name}={each.default}`" for each in option.keys if _is_training(each)),
        str(year(option) or ""),
        *numbers,
    ]


def _is_training(key: Key) -> bool:
    return key.name.startswith(("local.", "optimizer.", "schedule."))
