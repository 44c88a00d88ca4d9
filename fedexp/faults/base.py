"""The contract of injected faults."""

from collections.abc import Iterable, Iterator, Sequence

from fedexp.config.compatibility.declaration import Declares
from fedexp.contract import Message, Setting, Update
from fedexp.data.federated import ClientData


class Faults(Declares):
    """Injected faults. The base class injects none; it is the option ``faults=none``.

    Whether a client has a fault in a round depends only on (seed, round, client), so it is the same
    in every process and at every call.
    """

    def setup(self, setting: Setting) -> None:
        """Called once, before the first round."""

    def drops_out(self, round: int, client: int) -> bool:
        """Whether a chosen client drops out: it downloads the message and sends no update."""
        return False

    def data(self, round: int, data: ClientData) -> ClientData:
        """The data on which a client trains in this round."""
        return data

    def corrupt(self, update: Update, message: Message) -> Update:
        """The update of a client as it arrives at the server. The client received ``message``."""
        return update

    def collude(self, updates: Iterable[Update], message: Message) -> Iterator[Update]:
        """Apply faults that depend on several updates, and yield the updates that the server gets.

        This method is called once in each round, after ``corrupt``. The clients received
        ``message``. The method may hold updates back until the cohort is complete. It gets the
        updates of one process only, so an attack that needs the whole cohort forbids several
        processes.
        """
        return iter(updates)

    def metrics(self, round: int, cohort: Sequence[int]) -> dict[str, float]:
        """For each fault, the number of clients of the cohort that have it."""
        return {}
