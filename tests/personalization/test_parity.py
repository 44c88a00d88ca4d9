"""The options of personalizations give the same models in the serial and the vectorized engine."""

import pytest
import torch
from support.small_federations import personalized, train

from fedexp.measures.scoring.scoring import Scoring

OPTIONS = [
    ["fedrod", "personalization.private_head=copy", "personalization.second_phase=local"],
    [
        *("fedrod", "personalization.private_head=hypernetwork"),
        *("personalization.second_phase=plain_sgd", "loss=balanced_softmax"),
    ],
    ["ditto", "personalization.anchor=local", "personalization.optimizer=plain_sgd"],
    ["fedbabu", "personalization.tune_from=local", "personalization.tuning_epochs=1"],
    ["fedper", "personalization.global_model=initial_head"],
]


@pytest.mark.matrix
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options[0])
def test_vectorized_is_serial_but_for_rounding(options: list[str]) -> None:
    serial = personalized(*options)
    vectorized = personalized(*options, "engine=vectorized")
    for federation in (serial, vectorized):
        for round, cohort in ((1, [0, 1]), (2, [1, 2])):
            train(federation, round, cohort)
    for name, value in serial.server.weights.items():
        torch.testing.assert_close(vectorized.server.weights[name], value, rtol=1e-4, atol=1e-5)
    personal = [
        {client: p.loss for client, p in Scoring(f.engine).score_personal(f.server.broadcast(2))}
        for f in (serial, vectorized)
    ]
    assert personal[0].keys() == {0, 1, 2}
    assert personal[1] == pytest.approx(personal[0], rel=1e-4)
