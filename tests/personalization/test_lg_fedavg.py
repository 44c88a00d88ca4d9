import pytest
from support.small_federations import moved, personalized

from fedexp.errors import InputError


def test_only_the_head_is_sent_and_each_client_keeps_its_body() -> None:
    federation = personalized("lg_fedavg")
    initial = dict(federation.engine.resources.initial)
    body = {name for name in initial if name.startswith("backbone.")}
    updates = list(federation.engine.train([0, 1], federation.server.broadcast(1)))
    for update in updates:
        assert update.weights.keys() == initial.keys() - body
        kept = federation.store.private(update.client)
        assert kept is not None
        assert moved({name: initial[name] for name in body}, kept) == body


def test_a_client_goes_on_with_its_own_body_and_the_mean_head() -> None:
    federation = personalized("lg_fedavg", "clients.per_round=4")
    federation.run_round(1)
    module = federation.engine.resources.load_global(federation.server.broadcast(2))
    module.load(federation.store.private(0) or {})
    expected = {name: value.clone() for name, value in module.weights.items()}
    with federation.store.open(0) as state:
        begun = federation.engine.begin(0, federation.server.broadcast(2), state).weights
    assert not moved(expected, begun)
    assert moved(begun, federation.store.model(0)) <= {"head.linear.weight", "head.linear.bias"}


def test_a_fixed_head_leaves_nothing_to_share() -> None:
    with pytest.raises(InputError, match=r"head=etf: trains nothing that clients could share"):
        personalized("lg_fedavg", "head=etf")
