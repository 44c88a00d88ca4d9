"""Clients that never train: who they are, what the federation sees of them, and their scores."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.federations import compose, federate
from support.natural_users import PLAY_OPTIONS, SMALL_LSTM, write_play
from support.refusals import refused

import fedexp
from fedexp.core.client import ClientModule
from fedexp.core.messages import Message
from fedexp.core.token_rows import IGNORED
from fedexp.data.load import held_out_clients
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan
from fedexp.testing import check_measure

SMALL = ["clients.count=10", "clients.per_round=4", "data.subset=400", "local.epochs=1"]
SMALL += ["partition.beta=1", "measure.personal.every=1", "clients.held_out=0.3", "rounds=2"]
FINETUNE = ["personalization=finetune", "personalization.epochs=1"]


def scores(federation: Federation, round: int = 1) -> dict[str, float]:
    metrics = federation.run_round(round).metrics
    return {name: value for name, value in metrics.items() if name.startswith("held_out/")}


def test_the_share_of_the_clients_with_data() -> None:
    clients = [np.arange(3 * (client % 2)) for client in range(40)]  # half have no data
    found = held_out_clients(clients, 0.26, seed=0)
    assert len(found) == 5
    assert found == sorted(set(found))
    assert all(client % 2 for client in found)
    assert found == held_out_clients(clients, 0.26, seed=0)
    assert found != held_out_clients(clients, 0.26, seed=1)
    assert held_out_clients(clients, 0.0, seed=0) == []


def test_they_are_clients_without_data_to_everything_else() -> None:
    federation, whole = federate(*SMALL), federate(*SMALL[:-2])
    held = federation.data.held_out_clients
    assert len(held) == 3
    for client in range(10):
        one, other = federation.data.clients[client], whole.data.clients[client]
        if client in held:
            assert one.num_samples == len(one.test_index) == one.class_counts.sum() == 0
            one = held[client]
        assert torch.equal(one.train_index, other.train_index)
        assert torch.equal(one.test_index, other.test_index)
        assert torch.equal(one.class_counts, other.class_counts)
    sizes = federation.sampler._clients.sizes
    assert sizes.nonzero().flatten().tolist() == [c for c in range(10) if c not in held]
    assert federation.data.class_counts[list(held)].sum() == 0


@pytest.mark.parametrize("sampler", ["random", "round_robin", "power_of_choice", "hics"])
def test_no_sampler_chooses_them(sampler: str) -> None:
    federation = federate(*SMALL, f"sampler={sampler}", "measure.personal=null")
    for round in range(1, 6):
        federation.run_round(round)
    times = federation.sampler.times_chosen
    held = list(federation.data.held_out_clients)
    assert times[held].sum() == 0
    assert times.sum() > 15
    assert not set(held) & set(federation.store.clients_with_state)


def test_their_validation_samples_choose_nothing() -> None:
    federation, whole = (federate(*words, "data.validation=0.2") for words in (SMALL, SMALL[:-2]))
    held = federation.data.held_out_clients
    fewer = len(whole.data.validation) - len(federation.data.validation)
    assert fewer == sum(len(client.validation_index) for client in held.values()) > 0


def by_hand(federation: Federation) -> dict[str, list[float]]:
    """Kind -> each held-out client's accuracy of the global model, by plain loops."""
    module = federation.global_model(2)
    data, found = federation.data, {"own": [], "uniform": [], "local": [], "test_split": []}

    def hits(samples: object, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, labels = samples.gather(index)  # type: ignore[attr-defined]
        with torch.no_grad():
            return (module(inputs).argmax(dim=1) == labels).double(), labels

    right, labels = hits(data.test, torch.arange(len(data.test)))
    for client in data.held_out_clients.values():
        _, classes = hits(data.train, client.train_index)
        whole = torch.cat([client.train_index, client.validation_index])
        found["own"].append(hits(data.train, whole)[0].mean().item())
        shares = torch.tensor([(classes == label).double().mean() for label in labels])
        found["uniform"].append((right * (shares > 0)).sum().item() / (shares > 0).sum().item())
        found["local"].append((right * shares).sum().item() / shares.sum().item())
        found["test_split"].append(right[client.test_index].mean().item())
    return found


@pytest.mark.parametrize("words", ["algorithm=fedavg", "algorithm=fednh", "data.validation=0.2"])
def test_the_scores_of_the_global_model(words: str) -> None:
    federation = federate(*SMALL, words)
    found = scores(federation)
    for kind, accuracies in by_hand(federation).items():
        end = "" if kind == "own" else f"_{kind}"
        assert found[f"held_out/accuracy{end}"] == pytest.approx(np.mean(accuracies))
        assert found[f"held_out/std{end}"] == pytest.approx(np.std(accuracies))
        assert found[f"held_out/worst_decile{end}"] == pytest.approx(min(accuracies))
    assert len(found) == 12


def test_the_scores_of_tuned_models() -> None:
    """A newcomer tunes as a client that has trained: by the same samples, the same model."""
    federation = federate(*SMALL, *FINETUNE)
    found = scores(federation)
    message, data = federation.server.broadcast(2), federation.data
    expected = []
    for client in data.held_out_clients.values():
        module = federation.engine.resources.load_global(message).train()
        optimizer = module.optimizer(list(module.parameters()), 2)
        for inputs, labels in client.local_batches(2, 16):
            torch.nn.functional.cross_entropy(module(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
        inputs, labels = data.test.gather(client.test_index)
        with torch.no_grad():
            expected.append((module.eval()(inputs).argmax(1) == labels).double().mean().item())
    assert found["held_out/tuned_accuracy_test_split"] == pytest.approx(np.mean(expected))
    assert found["held_out/tuned_std_test_split"] == pytest.approx(np.std(expected))
    assert found["held_out/tuned_accuracy_local"] != found["held_out/accuracy_local"]
    assert not set(data.held_out_clients) & set(federation.store.clients_with_state)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [FINETUNE, ["algorithm=fedbabu"], ["algorithm=fedrod"]],
    ids=" ".join,
)
def test_the_engines_agree(method: list[str]) -> None:
    serial = scores(federate(*SMALL, *method))
    for engine in ("vectorized", "trainer"):
        assert scores(federate(*SMALL, *method, f"engine={engine}")) == pytest.approx(
            serial, abs=0.02
        )


@pytest.mark.parametrize(
    ("method", "scored"),
    [
        (["algorithm=fedrep"], set()),  # neither a global model nor tuning
        (["algorithm=fedavg"], {"held_out/accuracy"}),
        (["algorithm=fedbabu"], {"held_out/accuracy", "held_out/tuned_accuracy_local"}),
        (["algorithm=fedbabu", "personalization.tune_from=local"], {"held_out/accuracy"}),
        (["personalization=finetune_best"], {"held_out/accuracy"}),  # before the last round
        (["algorithm=ifca"], {"held_out/tuned_accuracy_local"}),
        (["algorithm=cfl"], set()),  # the server knows no cluster of a newcomer
        (["algorithm=pfedhn"], set()),  # and has not trained its embedding
        (["algorithm=fedavg", "clients.held_out=0"], set()),
    ],
)
def test_what_cannot_be_measured_is_absent(method: list[str], scored: set[str]) -> None:
    found = scores(federate(*SMALL, *method))
    assert scored == found.keys() & {"held_out/accuracy", "held_out/tuned_accuracy_local"}


def test_own_samples_are_scored_also_if_the_test_split_has_other_classes() -> None:
    words = ["data._target_=support.toy_sets.UnseenClasses", "~data.split_seed", "partition=iid"]
    words += ["clients.count=4", "clients.per_round=2", "clients.held_out=0.25", "rounds=1"]
    words += ["algorithm=fedavg", "model=mlp", "measure.personal=null", "measure.fewshot=null"]
    federation = federate(*words, "objective=held_out/accuracy")
    (client,) = federation.data.held_out_clients.values()
    found = scores(federation)
    inputs, labels = federation.data.train.gather(client.train_index)
    with torch.no_grad():
        right = federation.global_model(1)(inputs).argmax(dim=1) == labels
    assert found["held_out/accuracy"] == pytest.approx(right.double().mean().item())
    assert found.keys() == {"held_out/accuracy", "held_out/std", "held_out/worst_decile"}


def test_models_tuned_from_the_best_are_scored_last() -> None:
    federation = federate(*SMALL, "personalization=finetune_best")
    assert "held_out/tuned_accuracy_local" not in scores(federation, 1)
    assert "held_out/tuned_accuracy_local" in scores(federation, 2)


@pytest.mark.parametrize("personal", [[], ["measure.personal=null"]], ids=["personal", "alone"])
def test_the_best_model_is_tuned_and_not_the_last(personal: list[str]) -> None:
    federation = federate(*SMALL, "personalization=finetune_best", *personal)
    federation.run_round(1)
    federation.measures["best"].score = 2.0  # type: ignore[attr-defined]  # the first round's
    started: list[int] = []
    begin = federation.engine.begin_tuning

    def note(client: int, message: Message) -> ClientModule:
        started.append(message.round)
        return begin(client, message)

    federation.engine.begin_tuning = note  # type: ignore[method-assign]
    assert "held_out/tuned_accuracy_local" in scores(federation, 2)
    assert len(started) >= 3
    assert set(started) == {1}


@pytest.mark.parametrize("targets", ["next", "each"])
def test_natural_users_and_tokens(targets: str, tmp_path: Path) -> None:
    write_play(tmp_path / "play.txt")
    words = ["data=text", f"data.path={tmp_path / 'play.txt'}", *PLAY_OPTIONS, *SMALL_LSTM]
    words += ["clients.count=3", "clients.per_round=2", "clients.held_out=0.34", "local.epochs=1"]
    words += ["partition=natural", "partition.test_split=users", "algorithm=fedavg", "rounds=1"]
    words += [f"data.targets={targets}", *(["measure.personal=null"] if targets == "each" else [])]
    federation = federate(*words)
    found = scores(federation)
    (client,) = federation.data.held_out_clients.values()
    inputs, labels = federation.data.train.gather(client.train_index)
    module = federation.global_model(2)
    with torch.no_grad():
        guesses = module(inputs).argmax(dim=-1)
    assert labels.dim() == (2 if targets == "each" else 1)
    right = (guesses == labels)[labels != IGNORED].double().mean().item()
    assert found["held_out/accuracy"] == pytest.approx(right)
    assert found["held_out/std"] == 0
    assert ("held_out/accuracy_local" in found) == (targets == "next")


QUIET = ["tracking.wandb.mode=disabled", "tracking.progress=false", "measure.prototypes=null"]


@pytest.mark.slow
def test_two_processes_and_a_resumed_run_find_the_same(tmp_path: Path) -> None:
    words = [*SMALL, "algorithm=fedavg", *FINETUNE, *QUIET, "engine.device=cpu"]

    def last(folder: str, *more: str) -> dict[str, float]:
        result = fedexp.run([*words, f"hydra.run.dir={tmp_path}/{folder}", *more])
        row = result.metrics.iloc[-1]
        return {name: row[name] for name in row.index if name.startswith("held_out/")}

    one = last("one")
    assert "held_out/tuned_worst_decile_local" in one
    assert last("two", "engine.devices=2") == pytest.approx(one, abs=1e-6)
    last("resumed", "rounds=1")
    assert last("resumed", "resume=auto") == one
    with pytest.raises(InputError, match=r"had clients\.held_out=0\.3"):
        last("resumed", f"resume={tmp_path}/resumed", "rounds=3", "clients.held_out=0.2")


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["clients.held_out=1"], r"clients\.held_out=1.*: should be less than 1"),
        (["clients.held_out=-0.1"], r"clients\.held_out=-0\.1: should be greater than or equal"),
        (
            ["clients.held_out=0.01"],
            r"clients\.held_out=0\.01: rounds down to 0 of clients\.count=20 clients; should be 0 "
            r"or at least 0\.05",
        ),
        (
            ["clients.held_out=0.6"],
            r"clients\.per_round=10: must be at most 8: clients\.count=20 without the clients of "
            r"clients\.held_out=0\.6",
        ),
        (
            ["clients.held_out=0.1", "data=synthetic"],
            r"clients\.held_out=0\.1: needs the samples of all clients at once, .*; should be 0",
        ),
        (
            ["objective=held_out/accuracy"],
            r"objective=held_out/accuracy: is not measured",
        ),
    ],
)
def test_impossible_shares(overrides: list[str], line: str) -> None:
    with refused(line):
        plan(compose(*overrides))
    plan(compose("clients.held_out=0.5", "objective=held_out/accuracy"))


def test_some_clients_with_data_are_left() -> None:
    few = [np.arange(4), np.arange(0), np.arange(0), np.arange(0)]
    with pytest.raises(InputError, match=r"would hold out 0 of 1 clients with data"):
        held_out_clients(few, 0.2, seed=0)


@pytest.mark.slow
def test_the_contract_of_a_measure() -> None:
    check_measure("clients.held_out=0.25", *FINETUNE)


def test_shifted_images_are_scored_at_their_own_client_only() -> None:
    federation = federate(*SMALL, "partition.shift.kinds=[rotation]", "partition.shift.strength=1")
    found, data, module = scores(federation), federation.data, federation.global_model(1)
    accuracies = []
    for client in data.held_out_clients.values():
        inputs, labels = data.test.gather(client.test_index)
        with torch.no_grad():
            right = module(inputs).argmax(dim=1) == labels
        shown = [c for c in labels.unique().tolist() if client.class_counts[c]]
        sizes = {c: (data.test.labels == c).sum().item() for c in shown}
        recalls = {c: right[labels == c].double().mean().item() for c in shown}
        hits = sum(recalls[c] * sizes[c] for c in shown)
        accuracies.append(hits / sum(sizes.values()))
    assert found["held_out/accuracy_uniform"] == pytest.approx(np.mean(accuracies))
