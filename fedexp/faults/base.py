"""What can go wrong on purpose."""

from collections.abc import Sequence

from fedexp.core.messages import Message, Update
from fedexp.core.part import Setting
from fedexp.data.federated import ClientData


class Faults:
    """What goes wrong on purpose; here, nothing: ``faults=none``.

    Every answer is a pure function of (seed, round, client), so that any process may ask, in any
    order, as often as it likes.
    """

    def setup(self, setting: Setting) -> None:
        """Called once, before the first round."""

    def drops_out(self, round: int, client: int) -> bool:
        """Whether a chosen client drops out: it downloads the message and is not heard of again."""
        return False

    def data(self, round: int, data: ClientData) -> ClientData:
        """What a client trains on in this round, instead of its data."""
        return data

    def corrupt(self, update: Update, message: Message) -> Update:
        """What arrives of an update that answers ``message``."""
        return update

    def metrics(self, round: int, cohort: Sequence[int]) -> dict[str, float]:
        """How many of the cohort's clients each fault has befallen."""
        return {}
