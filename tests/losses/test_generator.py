"""FedGen's generator and its training, by independent loops."""

import math
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from support.draws import draw
from support.state_files import through_a_file
from torch import nn

from fedexp.core.randomness import torch_generator
from fedexp.losses.generator import (
    FeatureGenerator,
    GeneratorTraining,
    diversity_loss,
    ensemble_loss,
    generate,
    label_shares,
)

CLASSES, DIM, NOISE, HIDDEN = 4, 5, 3, 7


def make_training(steps: int = 3) -> GeneratorTraining:
    torch.manual_seed(0)
    generator = FeatureGenerator(NOISE, HIDDEN, CLASSES, DIM)
    return GeneratorTraining(generator, steps, 6, 0.01, 0.5, 0.1, diversity=2.0)


def make_heads() -> list[nn.Linear]:
    torch.manual_seed(1)
    return [nn.Linear(DIM, CLASSES).requires_grad_(False) for _ in range(2)]


HEADS = make_heads()
SEEN = torch.tensor([[3.0, 0.0, 0.0, 1.0], [1.0, 0.0, 2.0, 0.0]])  # nobody holds class 1


def test_the_layers_of_the_generator() -> None:
    generator = make_training().generator
    noise, labels = torch.rand(6, NOISE), torch.tensor([0, 1, 2, 3, 3, 0])
    rows = []
    for row, label in zip(noise, labels.tolist(), strict=True):
        row_in = torch.cat([row, F.one_hot(torch.tensor(label), CLASSES).float()])
        rows.append(generator.first.weight @ row_in + generator.first.bias)
    hidden = torch.stack(rows)
    hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    expected = hidden.relu() @ generator.last.weight.T + generator.last.bias
    torch.testing.assert_close(generator(noise, labels), expected)


def test_folded_it_is_the_generator_in_eval_mode() -> None:
    training = make_training()
    training.train(HEADS, SEEN, torch_generator(0, "test"))  # so that no statistic is 0 or 1
    noise, labels = torch.rand(9, NOISE), torch.arange(9) % CLASSES
    expected = training.generator.eval()(noise, labels)
    folded = training.generator.folded()
    torch.testing.assert_close(generate(folded, noise, labels), expected)
    assert {name: value.shape for name, value in folded.items()} == {
        "first_weight": (HIDDEN, NOISE + CLASSES),
        "first_bias": (HIDDEN,),
        "last_weight": (DIM, HIDDEN),
        "last_bias": (DIM,),
    }


def test_label_shares_by_hand() -> None:
    # class 0: (1+3)/(4+2), class 1: 1/2, class 2: 1/(1+3), class 3: 2/3
    expected = [[4 / 6, 1 / 2, 1 / 4, 2 / 3], [2 / 6, 1 / 2, 3 / 4, 1 / 3]]
    torch.testing.assert_close(label_shares(SEEN), torch.tensor(expected))


def test_the_ensemble_loss_by_loops() -> None:
    logits = [draw(6, CLASSES, seed=seed) for seed in (0, 1)]
    labels, shares = torch.tensor([0, 3, 2, 0, 0, 3]), label_shares(SEEN)
    expected = 0.0
    for client in range(2):
        for row, label in enumerate(labels.tolist()):
            loss = -logits[client][row].log_softmax(0)[label].item()
            expected += shares[client, label].item() * loss / 6
    assert ensemble_loss(logits, labels, shares).item() == pytest.approx(expected, rel=1e-5)


def test_the_diversity_loss_by_loops() -> None:
    noise, z = torch.rand(6, NOISE, generator=torch.Generator().manual_seed(0)), draw(6, DIM)
    pairs = [
        sum((a - b) ** 2 for a, b in zip(noise[i].tolist(), noise[j].tolist(), strict=True))
        / NOISE
        * sum(abs(a - b) for a, b in zip(z[i].tolist(), z[j].tolist(), strict=True))
        / DIM
        for i in range(6)
        for j in range(6)
    ]
    expected = math.exp(-sum(pairs) / 36)
    assert 0.1 < expected < 0.95
    assert diversity_loss(noise, z).item() == pytest.approx(expected, rel=1e-5)


def test_two_rounds_of_training_by_a_loop() -> None:
    training = make_training()
    generator = deepcopy(training.generator)
    for round in (0, 1):
        training.train(HEADS, SEEN, torch_generator(0, "test", round))

    optimizer = torch.optim.Adam(
        generator.parameters(), lr=0.01, betas=(0.9, 0.999), weight_decay=0.1
    )
    held = torch.tensor([0, 2, 3])
    generator.train()
    for round in (0, 1):
        random = torch_generator(0, "test", round)
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * 0.5**round
        for _ in range(3):
            labels = held[torch.randint(3, (6,), generator=random)]
            noise = torch.rand(6, NOISE, generator=random)
            z = generator(noise, labels)
            loss = 2 * diversity_loss(noise, z)
            for head, own in zip(HEADS, label_shares(SEEN), strict=True):
                losses = F.cross_entropy(head(z), labels, reduction="none")
                loss = loss + (own[labels] * losses).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, value in generator.state_dict().items():
        torch.testing.assert_close(training.generator.state_dict()[name], value)


def test_training_lowers_the_loss_of_the_heads() -> None:
    training = make_training(steps=100)
    losses = [training.train(HEADS, SEEN, torch_generator(0, "test", r)) for r in range(3)]
    assert losses[-1] < losses[0]


def test_a_restored_training_goes_on_with_the_same_bits() -> None:
    whole, resumed = make_training(), make_training()
    whole.train(HEADS, SEEN, torch_generator(0, "test", 0))
    state = through_a_file(whole.state_dict())
    resumed.load_state_dict(state, torch.device("cpu"))
    for training in (whole, resumed):
        training.train(HEADS, SEEN, torch_generator(0, "test", 1))
    for name, value in whole.generator.state_dict().items():
        assert torch.equal(resumed.generator.state_dict()[name], value)
