"""The plain engine: trains one client after another with Lightning Fabric."""

from collections import Counter
from collections.abc import Iterator, Sequence

from fedexp.core.error_notes import noted
from fedexp.core.messages import Message, Update
from fedexp.engines.base import Engine
from fedexp.engines.kept_optimizer import PERSONAL_MODEL, SHARED_MODEL
from fedexp.engines.turn import Trained, end_turns
from fedexp.state.client_state import ClientState


class Serial(Engine):
    """Trains clients one after another, each with the whole device."""

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Train the clients in the cohort's order."""
        for client, draws in Counter(cohort).items():
            with (
                noted(f"training client {client} in round {message.round}", self._components),
                self.resources.store.open(client) as state,
            ):
                update = self._train_one(client, message, state, draws)
            yield update

    def _train_one(self, client: int, message: Message, state: ClientState, draws: int) -> Update:
        """Train the shared model and, if the method has one, the client's separate model."""
        personalization, before = self.resources.personalization, state.copy()
        module = self.begin(client, message, state)
        epochs = self.epochs(module.turn)
        kept = self.kept_optimizer(SHARED_MODEL, state)
        self.fit(module, personalization.phases(epochs), kept)
        trained = Trained(self.finish(state, draws), module.turn, state, before)
        if personal_phases := personalization.personal_phases(epochs):
            module = self.begin_personal(client, message, state)
            self.fit(module, personal_phases, self.kept_optimizer(PERSONAL_MODEL, state))
            self.finish_personal(state)
        (ended,) = end_turns([trained], self.resources)
        return ended
