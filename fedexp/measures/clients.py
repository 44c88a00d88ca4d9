"""A table of the clients: how much each client has trained, and how accurate its model is."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedexp.config.compatibility.traits import Need
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Setting
from fedexp.core.reducible import Contribution
from fedexp.engines.resources import Resources
from fedexp.measures.client_scores import PersonalMeasure
from fedexp.measures.measure import AfterRound, Measured
from fedexp.system.exchange import receipt


@dataclass
class _Total:
    """Sums over one client's accepted updates so far; ``loss`` is the latest update's loss."""

    turns: int = 0
    steps: int = 0
    upload_bytes: int = 0
    loss: float | None = None


class Clients(PersonalMeasure):
    """The table ``clients``: one row for each client that has trained, in each measured round.

    ``client`` is the client's number. ``samples`` and ``classes`` are the numbers of training
    samples and classes that the client holds. ``turns``, ``steps`` and ``upload_bytes`` are totals
    over the client's accepted updates so far. ``loss`` is the training loss of the latest update.
    ``accuracy_<kind>`` is an accuracy of the client's personal model, empty if it was not
    measured.
    """

    needs = PersonalMeasure.needs | {Need.SIMULATION}

    def setup(self, setting: Setting, resources: Resources) -> None:
        """Begin with empty totals."""
        super().setup(setting, resources)
        self._totals: dict[int, _Total] = {}
        self._arrived: list[Update] = []

    def begin_round(self, message: Message) -> None:
        """Add the previous round's updates to the totals."""
        self._add_up()

    def observe(self, update: Update) -> None:
        """Note an accepted update."""
        self._arrived.append(receipt(update))

    def contribution(self) -> Contribution:
        """The receipts of the updates that this process accepted: their numbers without tensors."""
        return Contribution(items=self._arrived)

    def set_reduced(self, sums: Tensors, items: Sequence[list[Update]]) -> None:
        """Replace the receipts of this process by the receipts of all processes."""
        self._arrived = [each for of_rank in items for each in of_rank]

    def __call__(self, after: AfterRound) -> Measured:
        """The table ``clients``."""
        self._add_up()
        scores = self.scores(after)
        numbers = sorted(self._totals.keys() | scores.keys())
        counts = [after.data.clients[number].class_counts for number in numbers]
        totals = [asdict(self._totals.get(number, _Total())) for number in numbers]
        table: dict[str, list[Any]] = {
            "client": numbers,
            "samples": [int(each.sum()) for each in counts],
            "classes": [int((each > 0).sum()) for each in counts],
        }
        table |= {name: [each[name] for each in totals] for name in asdict(_Total())}
        for kind in self.kinds:
            if kind != "angles":
                table[f"accuracy_{kind}"] = [
                    scores[each].accuracies.get(kind) if each in scores else None
                    for each in numbers
                ]
        return Measured(tables={"clients": table})

    def state_dict(self) -> dict[str, Any]:
        """The client's number, as a string -> the client's totals, as a dict."""
        self._add_up()
        return {str(client): asdict(total) for client, total in self._totals.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self._totals = {int(client): _Total(**total) for client, total in state.items()}

    def _add_up(self) -> None:
        for update in self._arrived:
            total = self._totals.setdefault(update.client, _Total())
            total.turns += 1
            total.steps += update.steps
            total.upload_bytes += update.nbytes
            total.loss = update.metrics.get("loss")
        self._arrived = []
