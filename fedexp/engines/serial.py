"""The default engine: Fabric drives one resident module over the cohort, client after client."""

from collections import Counter
from collections.abc import Iterator, Sequence

from fedexp.drawers import Drawer
from fedexp.engines.base import Engine
from fedexp.messages import Message, Update


class Serial(Engine):
    """Trains clients one after another, each on all of the device."""

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Each client's update in turn."""
        self.resources.store.begin_round()
        for client, draws in Counter(cohort).items():
            try:
                with self.resources.store.open(client) as drawer:
                    update = self._turn(client, message, drawer, draws)
            except Exception as error:
                error.add_note(f"while training client {client} in round {message.round}")
                raise
            yield update

    def _turn(self, client: int, message: Message, drawer: Drawer, draws: int) -> Update:
        """Train the shared model, and then the client's own if it has one."""
        personalization, epochs = self.resources.personalization, self.resources.local.epochs
        before = drawer.copy()
        loss = self.fit(self.begin(client, message, drawer), personalization.phases(epochs))
        update = self.finish(drawer, loss.item(), draws)
        if own := personalization.own_phases(epochs):
            self.fit(self.begin_own(client, message, drawer), own)
            self.finish_own(drawer)
        return self.deliver(update, message, drawer, before)
