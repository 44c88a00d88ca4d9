"""The hook ``upload``: what a client sends, and what it keeps."""

import pytest
import torch
from support.federations import equal, federate

SMALL = ["clients.count=4", "clients.per_round=2", "data.subset=120", "local.epochs=1"]


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_the_upload_replaces_what_is_sent_but_not_what_is_kept(engine: str) -> None:
    words = [*SMALL, f"engine={engine}"]
    plain = federate(*words)
    doubled = federate(*words, "regularizer._target_=support.upload_parts.Doubled")
    for federation in (plain, doubled):
        federation.run_round(1)
    for client in plain.sampler.select(1):
        kept, expected = (each.store.model(client) for each in (doubled, plain))
        assert all(torch.equal(kept[name], value) for name, value in expected.items())
        assert "sent" in doubled.store.memory(client, "regularizer")
    for name, value in plain.server.weights.items():
        torch.testing.assert_close(doubled.server.weights[name], 2 * value)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_a_model_that_is_not_finite_is_not_kept_even_if_what_is_sent_is_finite(engine: str) -> None:
    sends_zeros = "regularizer._target_=support.upload_parts.Zeros"
    federation = federate(*SMALL, f"engine={engine}", sends_zeros)
    (good,) = federation.engine.train([0], federation.server.broadcast(1))
    kept = federation.store.model(0)
    federation.server.weights["head.linear.bias"].fill_(torch.nan)
    (bad,) = federation.engine.train([0], federation.server.broadcast(2))
    assert good.is_finite
    assert not bad.is_finite
    assert equal(federation.store.model(0), kept)
