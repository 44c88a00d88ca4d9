from support.federations import equal, take_step
from support.small_federations import copy, personalized

from fedexp.core.messages import Tensors
from fedexp.runtime.federation import Federation


def test_a_client_goes_on_alone_whenever_it_is_chosen() -> None:
    """Whoever else takes part, and in which rounds."""
    alone, together = personalized("local"), personalized("local")
    for round, cohort in ((1, [0, 1]), (2, [2, 3]), (3, [3, 0])):
        message = together.server.broadcast(round)
        updates = list(together.engine.train(cohort, message))
        assert all(update.weights == {} for update in updates)
        take_step(together.server, updates)
    for round in (1, 3):
        before = copy(alone.engine.resources.initial) if round == 1 else models(alone)
        list(alone.engine.train([0], alone.server.broadcast(round)))
        assert not equal(models(alone), before)
    assert equal(models(alone), models(together))


def models(federation: Federation) -> Tensors:
    return copy(federation.store.model(0))
