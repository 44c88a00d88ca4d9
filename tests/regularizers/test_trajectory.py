from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from support.federations import equal, federate, take_step, weights_after
from support.state_files import through_a_file
from torch import Size, Tensor
from torch.func import functional_call, grad, vmap

from fedexp.cli.command import config_folder
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.part import Clients, Functional, Model, ServerTools, Setting
from fedexp.errors import InputError
from fedexp.regularizers import look_ahead
from fedexp.regularizers.synthetic import real_images
from fedexp.regularizers.trajectory import Trajectory
from fedexp.runtime.federation import Federation

DEFAULTS: dict[str, Any] = {
    str(key): value
    for key, value in OmegaConf.load(f"{config_folder()}/regularizer/trajectory.yaml").items()
    if key != "_target_"
}
CLASSES, FEATURES = 2, 3
LABELS = np.array([0, 0, 1, 1])


def linear(round: int, weights: Tensors) -> Functional:
    """A global model with logits = x W^T."""
    return lambda given, inputs: inputs.flatten(1) @ (weights | given)["w"].T


def part(
    shapes: dict[str, Size] | None = None,
    private: str = "",
    input_shape: tuple[int, ...] = (FEATURES,),
    **overrides: Any,
) -> Trajectory:
    """The part for a model of ``w`` [2, 3] and ``b`` [2], which the model above does not use."""
    shapes = shapes or {"w": Size([CLASSES, FEATURES]), "b": Size([CLASSES])}
    small: dict[str, Any] = {"ipc": 2, "outer_steps": 2, "inner_steps": 2, "image_lr": 1.0}
    made = Trajectory(**DEFAULTS | small | overrides)
    made.setup(
        Setting(
            *(0, 9, CLASSES, FEATURES, 1, 1),
            Clients.of(torch.ones(1, CLASSES)),
            Model(shapes, frozenset(shapes) - {private}, input_shape),
            ServerTools(global_model=linear),
        )
    )
    return made


def model(number: int, bias: float = 0.0) -> Tensors:
    """The global weights of one round."""
    draw = torch.Generator().manual_seed(number)
    return {"w": torch.randn(CLASSES, FEATURES, generator=draw), "b": torch.full((2,), bias)}


def after(server: Trajectory, current: Tensors, merged: Tensors) -> Tensors:
    """What the server sends once it has seen a round that led from ``current`` to ``merged``."""
    server.aggregate([])
    assert server.correct(current, merged, {}, 1) is merged
    return server.broadcast(0)


def descended(w: Tensor, images: Tensor, steps: int, lr: float) -> np.ndarray:
    """Gradient descent on the cross-entropy of x W^T, in NumPy."""
    found, x = w.double().numpy(), images.double().numpy()
    for _ in range(steps):
        scores = np.exp(x @ found.T)
        error = scores / scores.sum(1, keepdims=True) - np.eye(CLASSES)[LABELS]
        found = found - lr * error.T @ x / len(x)
    return found


def anchored(anchor: Tensors, **overrides: Any) -> Trajectory:
    """A part whose server has sent this w~."""
    made = part({name: value.shape for name, value in anchor.items()}, side="server", **overrides)
    weights = {name: torch.zeros_like(value) for name, value in anchor.items()}
    begin(made, PartMessage(2, weights, anchor))
    return made


def begin(made: Trajectory, message: PartMessage) -> None:
    client: Any = SimpleNamespace(compare=lambda name, step: None)
    made.begin(client, message, {})


# The penalty.


@pytest.mark.parametrize("adaptive", [True, False])
def test_value_and_gradient_by_hand(adaptive: bool) -> None:
    anchor = {"v": torch.tensor([1.0, 2.0]), "u": torch.tensor([5.0])}
    made = anchored(anchor, adaptive=adaptive, lam=0.3)
    w = {
        "v": torch.tensor([4.0, 6.0], requires_grad=True),
        "u": torch.tensor([4.5], requires_grad=True),
    }
    penalty = made(w.items())
    penalty.backward()
    length_v, length_u = 5.0, 0.5
    if adaptive:  # lam / 2 * length, but the gradient lam * (w - w~) / length: lam_j is a constant
        assert penalty.item() == pytest.approx(0.15 * (length_v + length_u))
        assert w["v"].grad.tolist() == pytest.approx([0.3 * 3 / 5, 0.3 * 4 / 5])  # type: ignore[union-attr]
        assert w["u"].grad == pytest.approx(-0.3)
    else:
        assert penalty.item() == pytest.approx(0.15 * (length_v**2 + length_u**2))
        assert w["v"].grad.tolist() == pytest.approx([0.3 * 3, 0.3 * 4])  # type: ignore[union-attr]
        assert w["u"].grad == pytest.approx(-0.3 * 0.5)


def test_at_the_anchor_there_is_no_pull() -> None:
    made = anchored({"v": torch.tensor([1.0, 2.0])})
    v = torch.tensor([1.0, 2.0], requires_grad=True)
    made([("v", v)]).backward()
    assert v.grad.tolist() == [0, 0]  # type: ignore[union-attr]


def test_without_an_anchor_there_is_no_term() -> None:
    made = anchored({"v": torch.tensor([1.0, 2.0])})
    assert made([("v", torch.zeros(2))]) > 0
    begin(made, PartMessage(3, {"v": torch.zeros(2)}))
    v = torch.zeros(2, requires_grad=True)
    penalty = made([("v", v)])
    penalty.backward()
    assert penalty == 0
    assert v.grad.tolist() == [0, 0]  # type: ignore[union-attr]


def test_anchors_are_not_part_of_the_model() -> None:
    assert anchored({"v": torch.zeros(2)}).state_dict() == {}


def test_private_parameters_are_not_pulled() -> None:
    made = part(private="b")
    assert made([("b", torch.ones(2))]) == 0
    made.active.fill_(1)
    assert made([("b", torch.ones(2))]) == 0


def test_several_clients_at_once() -> None:
    """Two clients with anchors of their own and one without, stacked by torch.func."""
    made = anchored({"v": torch.zeros(2)})
    anchors = torch.tensor([[0.0, 0.0], [1.0, 0.0], [7.0, 7.0]])
    buffers = {"anchors.v": anchors, "active": torch.tensor([1.0, 1.0, 0.0])}
    assert buffers.keys() == dict(made.named_buffers()).keys()
    v = torch.tensor([[3.0, 4.0], [1.0, 2.0], [1.0, 2.0]])

    def penalty(v: Tensor, buffers: Tensors) -> Tensor:
        found: Tensor = functional_call(made, buffers, ([("v", v)],))
        return found

    pulls = vmap(grad(penalty))(v, buffers)
    expected = DEFAULTS["lam"] * torch.tensor([[0.6, 0.8], [0.0, 1.0], [0.0, 0.0]])
    torch.testing.assert_close(pulls, expected)


TWO_LAYERS = {
    "conv.weight": torch.tensor([[3.0, 4.0]]),  # distances to zero: 5, 12, 2
    "conv.bias": torch.tensor([12.0]),
    "norm.weight": torch.tensor([2.0]),
}


@pytest.mark.parametrize(
    ("layers", "lengths"),
    [
        ("tensor", {"conv.weight": 5, "conv.bias": 12, "norm.weight": 2}),
        ("module", {"conv": 13, "norm": 2}),
        ("weight", {"conv.weight": 5}),
    ],
)
def test_what_a_layer_is(layers: str, lengths: dict[str, float]) -> None:
    made = anchored(
        {name: torch.zeros_like(value) for name, value in TWO_LAYERS.items()},
        layers=layers,
        lam=0.3,
        log_distances=True,
    )
    w = {name: value.clone().requires_grad_() for name, value in TWO_LAYERS.items()}
    penalty = made(w.items())
    penalty.backward()
    assert penalty.item() == pytest.approx(0.15 * sum(lengths.values()))
    for name, value in w.items():
        length = lengths.get(name, lengths.get(name.rpartition(".")[0]))
        expected = torch.zeros_like(value) if length is None else 0.3 * value.detach() / length
        found = torch.zeros_like(value) if value.grad is None else value.grad
        torch.testing.assert_close(found, expected)
    logged: dict[str, float] = {}
    client: Any = SimpleNamespace(weights=TWO_LAYERS, record=logged.update)
    assert made.report(client, {}) == {}
    wanted = {f"trajectory/distance/{layer}": length for layer, length in lengths.items()}
    assert logged == pytest.approx(wanted)


def test_distances_are_logged_on_request_of_at_most_thirty_layers() -> None:
    many = {f"w{number}": torch.ones(1) for number in range(40)}
    for log_distances, count in ((True, 30), (False, 0)):
        made = anchored(many, log_distances=log_distances)
        logged: dict[str, float] = {}
        client: Any = SimpleNamespace(weights=many, record=logged.update)
        made.report(client, {})
        assert len(logged) == count
    made = anchored(many, log_distances=True)
    begin(made, PartMessage(3, many))
    made.report(client, {})
    assert logged == {}


# Looking ahead, at the server.


def test_the_projection_starts_from_each_rounds_own_weights() -> None:
    server = part(side="server")
    for number in (1, 2, 3):
        now = model(number + 1)
        sent = after(server, model(number), now)
        images = server.server_state()["memory"]["synthetic"]
        expected = descended(now["w"], images, DEFAULTS["project_steps"], DEFAULTS["project_lr"])
        np.testing.assert_allclose(sent["w"], expected, rtol=1e-5)
        assert server.broadcast(number + 1).keys() == sent.keys()


def test_images_and_step_size_are_learnt_further() -> None:
    server = part(side="server")
    memories = []
    for number in (1, 2, 3):
        after(server, model(number), model(number + 1))
        memories.append(dict(server.server_state()["memory"]))
    for old, new in pairwise(memories):
        assert not torch.equal(old["synthetic"], new["synthetic"])
        assert not torch.equal(old["step_size"], new["step_size"])
        assert (old["synthetic"] - new["synthetic"]).norm() < 0.5 * old["synthetic"].norm()


@pytest.mark.parametrize("lag", [1, 3])
def test_a_model_of_m_rounds_ago_is_needed_and_used(
    monkeypatch: pytest.MonkeyPatch, lag: int
) -> None:
    server = part(side="server", lag=lag)
    steps = []

    def watch(
        loss: Any, start: Tensors, end: Tensors, images: Tensor, *rest: Any, **options: Any
    ) -> Any:
        steps.append((start["w"], end["w"]))
        return images, torch.tensor(0.01), torch.zeros(1)

    monkeypatch.setattr(look_ahead, "match_trajectory", watch)
    models = [model(number) for number in range(7)]
    for round in range(1, 6):  # w^t is models[t]
        sent = after(server, models[round], models[round + 1])
        assert bool(sent) == (round + 1 > lag)
    expected = [(models[t - lag]["w"], models[t]["w"]) for t in range(lag + 1, 7)]
    assert len(steps) == len(expected)
    for found, wanted in zip(steps, expected, strict=True):
        assert all(map(torch.equal, found, wanted))


@pytest.mark.parametrize("lag", [1, 2])
def test_waiting_delays_the_first_projection_and_the_rounds_of_learning(lag: int) -> None:
    server = part(side="server", lag=lag, wait=1, update_every=2)
    learnt, sent = [], []
    for round in range(1, 8):  # w^t is model(t + 1), with t = 0 the first
        sent.append(bool(after(server, model(round), model(round + 1))))
        learnt.append("trajectory/matching_loss" in server.metrics())
    first = lag + 1  # t > m
    assert sent == [t >= first for t in range(1, 8)]
    assert learnt == [t >= first and (t - first) % 2 == 0 for t in range(1, 8)]


def test_augmentation_is_drawn_anew_each_round_and_not_used_in_the_projection() -> None:
    """Only images can be augmented; here of two by two pixels."""
    shapes = {"w": Size([CLASSES, 4])}
    weights = [
        {"w": torch.randn(CLASSES, 4, generator=torch.Generator().manual_seed(n))} for n in range(4)
    ]
    found = {}
    for augment, recompute in (("none", True), ("dsa", True), ("dsa", False)):
        server = part(
            shapes, side="server", input_shape=(1, 2, 2), augment=augment, recompute=recompute
        )
        for old, new in pairwise(weights):
            sent = after(server, old, new)
        images = server.server_state()["memory"]["synthetic"]
        expected = descended(weights[-1]["w"], images.flatten(1), 5, 0.01)
        np.testing.assert_allclose(sent["w"], expected, rtol=1e-4)
        found[augment, recompute] = images
    torch.testing.assert_close(found["dsa", True], found["dsa", False])
    assert not torch.allclose(found["none", True], found["dsa", True])


def test_only_images_are_augmented() -> None:
    with pytest.raises(InputError, match=r"^regularizer\.augment=dsa: needs images .*\[3\]"):
        part(augment="dsa")


def test_a_round_in_which_nothing_moves_is_skipped() -> None:
    server = part(side="server")
    assert after(server, model(1), model(1)) == {}
    assert server.metrics() == {}
    assert "synthetic" not in server.server_state()["memory"]
    assert after(server, model(1), model(2)).keys() == {"w", "b"}
    before = server.server_state()["memory"]["synthetic"].clone()
    assert after(server, model(2), model(2)) == {}
    assert torch.equal(server.server_state()["memory"]["synthetic"], before)
    assert after(server, model(2), model(3))


def test_what_does_not_move_is_not_projected(monkeypatch: pytest.MonkeyPatch) -> None:
    server = part(side="server")
    names = []
    match = look_ahead.match_trajectory

    def watch(*given: Any, **options: Any) -> Any:
        names.append(given[1].keys())
        return match(*given, **options)

    monkeypatch.setattr(look_ahead, "match_trajectory", watch)
    sent = after(server, model(1, bias=4), model(2, bias=4))
    assert sent["b"].tolist() == [4, 4]
    assert names == [{"w"}]


@pytest.mark.parametrize(
    ("update_every", "learnt"), [(1, [2, 3, 4, 5, 6]), (2, [2, 4, 6]), (4, [2, 6]), (None, [2])]
)
def test_update_every(update_every: int | None, learnt: list[int]) -> None:
    server = part(side="server", update_every=update_every)
    found, before = [], torch.zeros(0)
    for round in range(2, 7):
        sent = after(server, model(round - 1), model(round))
        images = server.server_state()["memory"]["synthetic"]
        if not torch.equal(images, before):
            found.append(round)
        assert ("trajectory/matching_loss" in server.metrics()) == (round in learnt)
        assert "trajectory/step_size" in server.metrics()
        expected = descended(model(round)["w"], images, 5, 0.01)
        np.testing.assert_allclose(sent["w"], expected, rtol=1e-5)
        before = images
    assert found == learnt


def test_a_step_size_may_become_negative_and_is_logged() -> None:
    server = part(side="server", step_size=1e-6, step_lr=10.0, image_lr=0)
    for number in range(1, 8):
        assert after(server, model(number), model(number + 1))
        step_size = server.metrics()["trajectory/step_size"]
        assert step_size == server.server_state()["memory"]["step_size"].item()
        if step_size < 0:
            return
    pytest.fail("it was always positive")


def test_results_that_are_not_finite_are_discarded() -> None:
    server = part(side="server")
    after(server, model(1), model(2))
    before = dict(server.server_state()["memory"])
    diverging = part(side="server", image_lr=1e38)
    assert after(diverging, model(1), model(2)) == {}
    assert diverging.metrics() == {"trajectory/diverged": 1.0}
    assert "synthetic" not in diverging.server_state()["memory"]
    diverging.load_server_state({"round": 1, "memory": before, "projected": {}})
    sent = after(diverging, model(2), model(3))
    expected = descended(model(3)["w"], before["synthetic"], 5, 0.01)
    np.testing.assert_allclose(sent["w"], expected, rtol=1e-5)
    assert diverging.metrics()["trajectory/diverged"] == 1
    far = part(side="server", project_lr=1e40)
    assert after(far, model(1), model(2)) == {}
    assert far.metrics()["trajectory/diverged"] == 1


def test_a_round_without_updates_keeps_what_there_is() -> None:
    server = part(side="server")
    sent = after(server, model(1), model(2))
    server.aggregate([])
    assert server.metrics() == {}
    assert torch.equal(server.broadcast(3)["w"], sent["w"])


def test_server_state_is_restored() -> None:
    server, again = part(side="server", lag=2), part(side="server", lag=2)
    for number in (1, 2, 3):
        after(server, model(number), model(number + 1))
    again.load_server_state(through_a_file(server.server_state()))
    assert torch.equal(again.broadcast(4)["w"], server.broadcast(4)["w"])
    for number in (4, 5):
        a = after(server, model(number), model(number + 1))
        b = after(again, model(number), model(number + 1))
        assert torch.equal(a["w"], b["w"])
        assert server.metrics() == again.metrics()


def test_a_server_must_have_the_whole_model() -> None:
    with pytest.raises(InputError, match=r"^regularizer\.side=server: .*b stays with the clients"):
        part(side="server", private="b")
    part(side="client", private="b")


# Whole federations.

TINY = [
    *["clients.count=4", "clients.per_round=4", "local.epochs=1", "data.subset=200"],
    *["partition.beta=0.1", "measure.personal=null"],
]
QUICK = ["ipc=2", "outer_steps=2", "inner_steps=2"]


def fedptr(*overrides: str, side: str = "client", lam: float = 0.05) -> Federation:
    quick = [f"regularizer.{each}" for each in (*QUICK, f"lam={lam}", f"side={side}")]
    return federate(*TINY, "algorithm=fedptr", *quick, *overrides)


@pytest.mark.parametrize("side", ["client", "server"])
def test_without_strength_it_is_fedavg_to_the_bit(side: str) -> None:
    fedavg = federate(*TINY, "algorithm=fedavg")
    assert equal(weights_after(fedptr(side=side, lam=0), 3), weights_after(fedavg, 3))


@pytest.mark.parametrize("side", ["client", "server"])
def test_it_is_fedavg_until_there_is_a_model_m_rounds_older(side: str) -> None:
    fedavg = federate(*TINY, "algorithm=fedavg")
    federation = fedptr("regularizer.lag=2", side=side)
    message = federation.server.broadcast(1).nbytes
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
        assert metrics["cost/download_bytes"] == 4 * message
        fedavg.run_round(round)
    assert equal(federation.server.weights, fedavg.server.weights)
    metrics = federation.run_round(3).metrics
    fedavg.run_round(3)
    assert not equal(federation.server.weights, fedavg.server.weights)
    assert {"trajectory/step_size", "trajectory/matching_loss"} <= metrics.keys()
    assert metrics["cost/download_bytes"] == 4 * message * (2 if side == "server" else 1)


@pytest.mark.matrix
@pytest.mark.parametrize("side", ["client", "server"])
@pytest.mark.parametrize(
    "overrides",
    [
        ["head=linear", "regularizer.adaptive=false", "regularizer.recompute=false"],
        ["head=etf", "local.grad_clip=10"],
        ["head=prototype", "local.grad_clip=10"],
        ["loss=rpcl_cpdr"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_with_other_parts(side: str, overrides: list[str]) -> None:
    federation = fedptr(*overrides, side=side)
    for round in (1, 2, 3):
        metrics = federation.run_round(round).metrics
    assert all(value.isfinite().all() for value in federation.server.weights.values())
    assert 0 < metrics["train/loss"] < 100
    assert metrics["trajectory/diverged"] == 0


def test_each_client_counts_the_models_that_it_has_seen() -> None:
    federation = fedptr("sampler=round_robin", "clients.per_round=2", "partition.beta=100")
    sent = {}
    for round in range(1, 6):
        sent[round] = federation.server.weights
        metrics = federation.run_round(round).metrics
        assert ("trajectory/step_size" in metrics) == (round > 2)
    for client, seen, latest in ((0, 3, 5), (1, 3, 5), (2, 2, 4), (3, 2, 4)):
        memory = federation.store.memories("regularizer")[client]
        assert memory["seen"] == seen
        assert torch.equal(memory["0/head.linear.bias"], sent[latest]["head.linear.bias"])
        assert memory["synthetic"].shape == (20, 1, 8, 8)


def test_a_clients_direction_leads_to_its_anchor() -> None:
    federation = fedptr()
    for round in (1, 2):
        message = federation.server.broadcast(round)
        updates = list(federation.engine.train([0, 1], message))
        take_step(federation.server, updates)
    anchors = federation.module.regularizer.anchors
    last = updates[-1].directions["projected"]
    assert isinstance(federation.module.regularizer, Trajectory)
    for name, step in last.items():
        assert torch.equal(step, anchors[name] - message.weights[name])
    assert any(step.norm() > 0 for step in last.values())
    other = updates[0].directions["projected"]
    assert not torch.equal(other["head.linear.bias"], last["head.linear.bias"])


def test_clients_begin_with_their_own_images_and_noise() -> None:
    start = ["regularizer.init=distinct_images", "regularizer.image_lr=0"]
    federation = fedptr("data.subset=60", "regularizer.ipc=3", *start)
    weights_after(federation, 2)
    repeated = False
    for data in (federation.data.clients[client] for client in range(4)):
        synthetic = federation.store.memories("regularizer")[data.client]["synthetic"]
        inputs, labels = next(data.batches(1000))
        for label in range(10):
            own = {tuple(image.flatten().tolist()) for image in inputs[labels == label]}
            found = synthetic[3 * label : 3 * label + 3].flatten(1)
            used = {tuple(image.tolist()) for image in found}
            if own:
                assert used <= own
                assert len(used) == min(3, len(own))
                repeated |= len(own) < 3
            else:
                assert found.mean().abs() < 4 / found.numel() ** 0.5
                assert found.std() == pytest.approx(1, abs=0.3)
    assert repeated


def test_with_replacement_images_may_repeat() -> None:
    data = federate("clients.count=2", "clients.per_round=2").data.clients[0]
    label = int(data.class_counts.argmax())
    count = int(data.class_counts[label])
    distinct = real_images(data, label, count, seed=0, round=2)
    drawn = real_images(data, label, count, seed=0, round=2, replacement=True)
    assert len(distinct.flatten(1).unique(dim=0)) == count
    assert len(drawn.flatten(1).unique(dim=0)) < 0.8 * count
    assert len(drawn) == count


@pytest.mark.parametrize("init", ["images", "distinct_images", "noise"])
def test_what_a_client_starts_from(init: str) -> None:
    federation = fedptr(f"regularizer.init={init}", "regularizer.image_lr=0")
    weights_after(federation, 2)
    inputs, labels = next(federation.data.clients[0].batches(1000))
    synthetic = federation.store.memories("regularizer")[0]["synthetic"]
    own = {tuple(image.flatten().tolist()) for image in inputs}
    found = [tuple(image.flatten().tolist()) in own for image in synthetic]
    held = set(labels.tolist()) if init != "noise" else set()
    assert found == [label in held for label in range(10) for _ in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("side", ["client", "server"])
def test_augmented_in_serial_and_vectorized(side: str) -> None:
    options = ["regularizer.augment=dsa", "regularizer.log_distances=true", "model=convnet"]
    small = ["model.width=4", "model.depth=1", "regularizer.layers=module"]
    serial, stacked = (
        fedptr(*options, *small, f"engine={engine}", side=side)
        for engine in ("serial", "vectorized")
    )
    for round in (1, 2, 3):
        expected, found = serial.run_round(round).metrics, stacked.run_round(round).metrics
    distances = {name for name in expected if name.startswith("trajectory/distance/")}
    assert {name.rpartition("/")[2] for name in distances} >= {"head.linear"}
    for name in distances:
        assert found[name] == pytest.approx(expected[name], rel=1e-2)
        assert found[name] > 0
    for name, value in serial.server.weights.items():
        torch.testing.assert_close(value, stacked.server.weights[name], atol=1e-4, rtol=1e-3)


def test_real_images_are_drawn_by_client_and_round() -> None:
    data = federate("clients.count=2", "clients.per_round=2").data.clients[0]
    label = int(data.class_counts.argmax())
    first = real_images(data, label, 5, seed=0, round=2)
    assert torch.equal(first, real_images(data, label, 5, seed=0, round=2))
    assert not torch.equal(first, real_images(data, label, 5, seed=0, round=3))


@pytest.mark.parametrize("side", ["client", "server"])
def test_there_is_a_figure_after_the_last_round(side: str) -> None:
    federation = fedptr("rounds=2", side=side)
    federation.run_round(1)
    assert "trajectory/synthetic" in federation.run_round(2).figures
