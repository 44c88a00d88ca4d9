"""HiCS-FL's Figure 6: distance of clients' gradients from the global one, against label entropy.

    PYTHONPATH=scripts python scripts/papers/hics_gradient_gap.py NAME [OVERRIDE ...]
        [--envelope BETA RHO KAPPA ...]

FedAvg is trained with all clients in every round, each with a Dirichlet concentration of its own
(``partition=per_client_alpha``). Before each round, ||eta grad F_k(w) - eta grad F(w)||^2 is
computed for every client k with data: grad F_k is the gradient of the mean loss on its samples and
grad F = sum_k (n_k / n) grad F_k the gradient on all samples; eta is the round's learning rate. The
paper does not give its eta, so its scale cannot be compared.

NAME.csv has a row for each round and client. NAME.png shows each row as a point, and two envelopes

    kappa - rho exp(beta (H - ln C)),

which are fitted by quantile regression, so that 2.5 % of the points are above the upper envelope
and 2.5 % below the lower envelope. ``--envelope`` gives other envelopes. Defaults are digits, 50
clients and 20 rounds, which take less than a minute. The paper has 250 clients and 500 rounds, for
Fashion-MNIST with

    protocol=hics_fmnist data=fashion_mnist sampler=random clients.count=250 rounds=500

The paper names neither local epochs, batch size, optimizer, normalisation nor initial weights for
this figure; ``protocol=hics_fmnist`` has the values of the paper's other experiments.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from benchmark.rounds import NEVER, configure, prepare
from matplotlib.figure import Figure
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import mean_pinball_loss

from fedexp.core.randomness import seed_layers
from fedexp.drawing.style import BAR, empty_figure, open_frame
from fedexp.runtime.federation import Federation
from fedexp.samplers.heterogeneity import label_entropy

DEFAULTS = [
    "data=digits",
    "partition=per_client_alpha",
    "clients.count=50",
    "clients.per_round=${clients.count}",
    "rounds=20",
    f"measure.global.every={NEVER}",
]
BETAS = np.linspace(0.25, 3, 12)
QUANTILES = (0.975, 0.025)
MOST_FITTED = 1000
"""Points that an envelope is fitted to: a random sample if there are more."""


class Envelope(NamedTuple):
    """The curve kappa - rho exp(beta (H - ln C))."""

    beta: float
    rho: float
    kappa: float

    def __call__(self, entropies: np.ndarray, num_classes: int) -> np.ndarray:
        """The curve's values at the label ``entropies`` [n], which are in nats."""
        return self.kappa - self.rho * np.exp(self.beta * (entropies - math.log(num_classes)))


def squared_gaps(federation: Federation, round: int) -> dict[int, float]:
    """Client with data -> ||eta grad F_k - eta grad F||^2 at the global model before ``round``."""
    resources = federation.engine.resources
    message = federation.server.broadcast(round)
    module = resources.load_global(message)
    clients = [each for each in federation.data.clients if each.num_samples]
    gradients = []
    for data in clients:
        module.begin_turn(data, message)
        seed_layers(module.device, federation.data.seed, "gradient", round, data.client)
        found = module.loss_gradient().values()
        gradients.append(torch.cat([gradient.flatten().cpu() for gradient in found]))
    module.configure_optimizers()
    sizes = torch.tensor([data.num_samples for data in clients], dtype=torch.float32)
    stacked = torch.stack(gradients)
    distances = stacked - (sizes / sizes.sum()) @ stacked
    gaps = (module.learning_rate**2 * distances.square().sum(dim=1)).tolist()
    return {data.client: gap for data, gap in zip(clients, gaps, strict=True)}


def measure(overrides: Sequence[str]) -> pd.DataFrame:
    """A row for each round and client: ``round``, ``client``, ``label_entropy``, ``squared_gap``.

    ``attrs`` has the number of classes.
    """
    federation, rounds = prepare(list(overrides)), configure(list(overrides)).rounds
    data = federation.data
    entropies = label_entropy(data.class_counts).tolist()
    rows = []
    for round in range(1, rounds + 1):
        gaps = squared_gaps(federation, round)
        rows += [(round, client, entropies[client], gap) for client, gap in gaps.items()]
        federation.run_round(round)
    table = pd.DataFrame(rows, columns=["round", "client", "label_entropy", "squared_gap"])
    table.attrs["num_classes"] = data.description.num_classes
    return table


def fit_envelope(
    entropies: np.ndarray, gaps: np.ndarray, num_classes: int, quantile: float
) -> Envelope:
    """The curve that has this share of the points [n] below it, by quantile regression.

    beta is the best of ``BETAS``; kappa and rho are exact for it.
    """
    if len(gaps) > MOST_FITTED:
        chosen = np.random.default_rng(0).choice(len(gaps), MOST_FITTED, replace=False)
        entropies, gaps = entropies[chosen], gaps[chosen]
    scale = gaps.max() or 1.0  # the solver's tolerances are absolute
    candidates = []
    for beta in BETAS.tolist():
        growth = np.exp(beta * (entropies - math.log(num_classes)))[:, None]
        line = QuantileRegressor(quantile=quantile, alpha=0).fit(growth, gaps / scale)
        loss = mean_pinball_loss(gaps / scale, line.predict(growth), alpha=quantile)
        rho, kappa = -scale * float(line.coef_[0]), scale * float(line.intercept_)
        candidates.append((loss, Envelope(beta, rho, kappa)))
    return min(candidates)[1]


def draw(table: pd.DataFrame, envelopes: Sequence[Envelope]) -> Figure:
    """Draw the rows of the table as points, and the envelopes as curves."""
    num_classes = table.attrs["num_classes"]
    figure = empty_figure(6, 4.4)
    axes = figure.subplots()
    axes.scatter(
        table.label_entropy, table.squared_gap, s=6, alpha=0.35, color=BAR, edgecolors="none"
    )
    grid = np.linspace(0, math.log(num_classes), 200)
    for envelope, color in zip(envelopes, ("tab:blue", "tab:green", "tab:orange"), strict=False):
        beta, rho, kappa = envelope
        label = f"β = {beta:.2g}, \N{GREEK SMALL LETTER RHO} = {rho:.2g}, κ = {kappa:.2g}"
        axes.plot(grid, envelope(grid, num_classes), color=color, label=label)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="entropy of the labels (nats)", ylabel="squared gap to the union's step")
    open_frame(axes)
    axes.legend(frameon=False)
    clients, rounds = table.client.nunique(), table["round"].nunique()
    axes.set_title(f"Gradient steps of {clients} clients in {rounds} rounds", fontsize=11)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, fit, and write NAME.csv and NAME.png."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument(
        "--envelope", type=float, nargs=3, action="append", metavar=("BETA", "RHO", "KAPPA")
    )
    options = parser.parse_intermixed_args(arguments)
    table = measure([*DEFAULTS, *options.overrides])
    entropies, gaps = table.label_entropy.to_numpy(), table.squared_gap.to_numpy()
    classes = table.attrs["num_classes"]
    envelopes = [Envelope(*each) for each in options.envelope or ()] or [
        fit_envelope(entropies, gaps, classes, quantile) for quantile in QUANTILES
    ]
    for envelope in envelopes:
        below = (gaps <= envelope(entropies, classes)).mean()
        curve = ", ".join(f"{name} {value:.3g}" for name, value in envelope._asdict().items())
        print(f"{curve}: {below:.1%} of {len(gaps):,} points are below")
    options.name.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.name.with_suffix(".csv"), index=False)
    draw(table, envelopes).savefig(options.name.with_suffix(".png"))


if __name__ == "__main__":
    main()
