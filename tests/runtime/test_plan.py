"""What follows from the hooks of a component is known before a run starts."""

import pytest
from support.federations import compose

from fedexp.core.client_protocol import GradientAt
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.sockets import LocalGradient
from fedexp.errors import InputError
from fedexp.runtime.plan import plan

TWO = ("engine.devices=2", "engine.device=cpu")


@pytest.mark.parametrize(
    ("override", "component", "missing"),
    [
        (
            "aggregator._target_=support.contract_breakers.InOneProcess",
            "aggregator (support.contract_breakers.InOneProcess)",
            "no contribution and no set_reduced",
        ),
        (
            "+measure.own._target_=support.measure_breakers.OneSided",
            "measure.own (support.measure_breakers.OneSided)",
            "no set_reduced",
        ),
    ],
)
def test_a_component_without_hooks_for_several_processes(
    override: str, component: str, missing: str
) -> None:
    with pytest.raises(InputError) as raised:
        plan(compose(override, *TWO))
    assert str(raised.value) == (
        f"engine.devices=2 engine.num_nodes=1: {component} has {missing}, which several processes "
        "need; should be one process"
    )
    assert plan(compose(override))


class Addressed(LocalGradient):
    """A gradient rule whose server half may change the weights for one client."""

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        return message

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        return gradient_at(parameters)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["compression@download=topk"],
            "compression@download: this gradient may start clients from other weights",
        ),
        (
            ["algorithm=feddyn", "regularizer.clip_quadratic=false"],
            r"regularizer\.clip_quadratic=false: this gradient would change only a part",
        ),
    ],
)
def test_a_gradient_rule_that_addresses_clients_has_the_traits_of_both_hooks(
    words: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        plan(compose(*words, f"gradient._target_={__name__}.Addressed"))
