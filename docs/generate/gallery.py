"""All methods on one page, in two tables that the reader can sort."""

from collections import defaultdict
from html import escape as as_attribute
from statistics import fmean

from generate.citation import venue, year
from generate.declared import SOCKETS
from generate.measured import GLOBAL, PERSONAL, Runs, runs
from generate.observed import REFUSERS, Names, Observed, observed
from generate.options import Option, default, find, options
from generate.run_plan import also
from generate.text import escape, sentence, table
from generate.yaml_comments import Key

_HEADER = (
    "method",
    "socket",
    "optimizer",
    "sets besides its parts",
    "venue",
    "year",
    "accuracy",
    "personal",
    "MB",
    "seconds",
)
_NEEDS = (
    "method",
    "what travels",
    "a client keeps",
    "the server keeps",
    *REFUSERS,
    "kB a round",
    "bytes / FedAvg",
    "seconds / FedAvg",
)
_BASELINE = "fedavg"
_MEANS = (default("aggregator"), "uniform")
"""Aggregators that a private mean stands in for."""
_TASK = ("data", "model", "partition", "local")
"""Groups whose settings make another task; costs on two tasks are not compared."""

_BEFORE = """\
# All methods

Each row is a preset of `algorithm=`, run on digits: 20 clients, Dirichlet(0.1), ten clients in each
of 30 rounds, with the defaults of its options. Rows with † had further options: {also}. Nothing was
tuned for this task. So the tables show what methods need and cost and that they run, not which one
is best. A click on a column's name sorts by it.

## What they are and how they did
"""

_BETWEEN = """\
*optimizer*, *sets besides its parts*: [what a preset may
set](/concepts/sockets.md). [`sgd`](/options/optimizer/sgd.md) has momentum 0.9 and is this
project's default, which a method has unless it chooses another one; authors often use SGD without
momentum, [`sgd_plain`](/options/optimizer/sgd_plain.md). *accuracy*: of the global model after the
last round. *personal*: mean accuracy of the clients' own models on their classes. Both are means
over the seeds. *MB*: 10⁶ bytes in both directions over the whole run. *seconds*: processor seconds
of a run. [What every number means](/numbers/index.md). An empty cell was not measured: without a
global model there is no global accuracy.

## What they need and cost
"""

_AFTER = """\
*what travels*: the weights that are sent, and the tensors that a part sends besides: ↓ to the
clients, ↑ to the server. A link leads to the part, and the names of the tensors are the code's.
*a client keeps*, *the server keeps*: between rounds, besides the global weights; a client's own
model that only its evaluation needs is not counted. All this was seen in a few small rounds.
*stacked*: trains with [`engine=vectorized`](/options/engine/vectorized.md). *trainer*: with
[`engine=trainer`](/options/engine/trainer.md). *private*: with
[`aggregator=private`](/options/aggregator/private.md); "replaces its own" means that it runs, but
that the method's own aggregator is gone. *Flower*: `fedexp-flower` can write an app for it. Each
*no* shows the run's message under the pointer. *kB a round*: 10³ bytes in both directions, the mean
over the rounds. The last two columns are ratios of the whole run to that of `algorithm=fedavg`;
they are empty where a method was run with another model or other data.
"""


def gallery() -> str:
    """The page as MyST Markdown."""
    methods = options("algorithm")
    first = table(_HEADER, map(_row, methods), classes="sortable")
    second = table(_NEEDS, map(_needs, methods), classes="sortable .needs")
    return "\n\n".join([_BEFORE.format(also=_further()), first, _BETWEEN, second, _AFTER]) + "\n"


def _further() -> str:
    """The options with which some methods were run besides their presets, as a sentence's list."""
    methods = defaultdict(list)
    for option in options("algorithm"):
        if extra := also(option):
            methods[" ".join(extra)].append(f"`{option.name}`")
    return "; ".join(f"{', '.join(names)} had `{extra}`" for extra, names in methods.items())


def _row(option: Option) -> list[str]:
    found = runs("algorithm", option.name)
    numbers = ["", "", "", ""]
    if not isinstance(found, str):
        accuracies = (found.final(metric) for metric in (GLOBAL, PERSONAL))
        numbers = [
            *(f"{fmean(values):.3f}" if values else "" for values in accuracies),
            f"{found.traffic / 1e6:.1f}",
            f"{found.total('seconds'):.1f}",
        ]
    sockets = [group for group, _ in option.choices if group in SOCKETS]
    optimizer = dict(option.choices).get("optimizer", default("optimizer"))
    idea = sentence(option.summary).partition(": ")[2] or sentence(option.summary)
    mark = " †" if also(option) else ""
    return [
        f"[{option.name}](/{option.page}.md){mark}<small>{escape(idea)}</small>",
        ", ".join(sockets),
        optimizer,
        "<br>".join(f"`{each.name}={each.default}`" for each in option.keys if _is_shared(each)),
        venue(option),
        str(year(option) or ""),
        *numbers,
    ]


def _is_shared(key: Key) -> bool:
    return key.name.startswith(("local.", "optimizer.", "schedule.", "clients."))


def _needs(option: Option) -> list[str]:
    """A row of the second table."""
    name, seen = f"[{option.name}](/{option.page}.md)", observed(option.name)
    if seen is None:
        return [name, *[""] * 3, *[""] * len(REFUSERS), *_costs(option)]
    return [
        name,
        _traffic(option, seen),
        _kept(option, seen.client),
        _kept(option, seen.server),
        *(_allowed(option, each, seen.refused[each]) for each in REFUSERS),
        *_costs(option),
    ]


def _traffic(option: Option, seen: Observed) -> str:
    """What travels: the weights, how they are compressed, and what each part sends besides."""
    compressed = [_link(*each) for each in option.choices if each[0] == "compression"]
    lines = [" ".join([", ".join(seen.weights) or "no weights", *compressed])]
    for socket in sorted({*seen.down, *seen.up}):
        down, up = (set(each.get(socket, [])) for each in (seen.down, seen.up))
        sent = (f"{n} {'↓' * (n in down)}{'↑' * (n in up)}" for n in sorted(down | up))
        lines.append(f"{_part(option, socket)}: {escape(', '.join(sent))}")
    return "<br>".join(lines)


def _kept(option: Option, names: Names) -> str:
    """Each part that keeps something, with the names of its tensors."""
    lines = (f"{_part(option, each)}: {escape(', '.join(names[each]))}" for each in names)
    return "<br>".join(lines) or "none"


def _part(option: Option, socket: str) -> str:
    """A link to the method's option in this socket; other places are named."""
    if socket not in SOCKETS:
        return socket
    return _link(socket, dict(option.choices).get(socket, default(socket)))


def _link(group: str, name: str) -> str:
    return f"[{name}](/{find(group, name).page}.md)"


def _allowed(option: Option, asked: str, refusal: str) -> str:
    """Yes, or no with the run's message."""
    if refusal:
        return f'<abbr title="{as_attribute(refusal)}">no</abbr>'.replace("|", "&#124;")
    own = dict(option.choices).get("aggregator", default("aggregator"))
    is_replaced = REFUSERS[asked].startswith("aggregator=")
    return "replaces its own" if is_replaced and own not in _MEANS else "yes"


def _costs(option: Option) -> list[str]:
    """kB a round, and the run's bytes and seconds over the baseline's."""
    found, baseline = (runs("algorithm", each) for each in (option.name, _BASELINE))
    if isinstance(found, str) or isinstance(baseline, str):
        return ["", "", ""]
    each_round = f"{found.traffic / found.rounds / 1e3:.0f}"
    if _task(found) != _task(baseline):
        return [each_round, "", ""]
    seconds = found.total("seconds") / baseline.total("seconds")
    return [each_round, f"{found.traffic / baseline.traffic:.2f}", f"{seconds:.1f}"]


def _task(found: Runs) -> set[str]:
    """The overrides that say on what task the method was run."""
    return {word for word in found.command.split() if word.partition(".")[0] in _TASK}
