"""How strong FedSC's two loss terms are compared with the cross-entropy, round by round.

    PYTHONPATH=scripts python scripts/papers/fedsc_gradients.py --rounds 6 OVERRIDES ...

After each round a row is printed, about the global model's features z of 256 test samples. The row
has the mean length of z; the mean distance U(r) of z from the prototypes r; and the strength of
each term, which is the norm of the term's gradient with respect to z, divided by the norm of the
cross-entropy's gradient. The term RPCL has a column for each ``loss.normalizer``, and the term CPDR
for each ``loss.distance``, all at the same model; the run trains with the values of OVERRIDES. If
U(r) is over a client's dataset, the strength is the mean over the clients. OVERRIDES are overrides
of fedexp; algorithm=fedsc is set.
"""

import argparse
from typing import get_args

import torch
import torch.nn.functional as F
from benchmark.rounds import prepare
from torch import Tensor

from fedexp.core.client import ClientModule
from fedexp.losses.rpcl_cpdr import RpclCpdr
from fedexp.losses.semantic import Distance, Normalizer, cpdr, mean_distances, rpcl
from fedexp.runtime.federation import Federation

BATCH = 256
MOST = 1000
"""U(r) is taken over about this number of a client's training samples, at most twice as many."""


def spreads(federation: Federation, module: ClientModule, relational: Tensor) -> list[Tensor]:
    """U(r) [K, C] over evenly spaced training samples of each client with data, in eval mode."""
    module.eval()
    found = []
    for client in federation.data.clients:
        positions = torch.arange(0, client.num_samples, max(1, client.num_samples // MOST))
        if len(positions):
            with torch.no_grad():
                z = module.outputs(client.inputs(positions)).z
            found.append(mean_distances(z, relational))
    module.train()
    return found


def strength(federation: Federation, round: int) -> dict[str, float]:
    """Column name -> its value after this round."""
    module = federation.global_model(round).train()
    loss = module.loss
    assert isinstance(loss, RpclCpdr)
    inputs, labels = next(iter(federation.data.test.batches(BATCH)))
    z = module.outputs(inputs).z.detach().requires_grad_()
    entropy = F.cross_entropy(module.head(z), labels)

    def over_entropy(term: Tensor) -> float:
        (of_term,) = torch.autograd.grad(term, z)
        (of_entropy,) = torch.autograd.grad(entropy, z, retain_graph=True)
        return (of_term.norm() / of_entropy.norm()).item()

    def contrast(normalizer: Normalizer | Tensor) -> float:
        known = loss.relational, loss.holds, loss.temperature
        return over_entropy(loss.rpcl_weight * rpcl(z, labels, *known, normalizer))

    def discrepancy(distance: Distance) -> float:
        known = loss.consistent, loss.consistent_holds
        return over_entropy(loss.cpdr_weight * cpdr(z, labels, *known, distance))

    of_clients = [contrast(each) for each in spreads(federation, module, loss.relational)]
    batch = mean_distances(z.detach(), loss.relational)[loss.holds]
    return {
        "length of z": z.norm(dim=1).mean().item(),
        "U": batch.mean().item(),
        **{f"RPCL, {each}": contrast(each) for each in get_args(Normalizer)},
        "RPCL, dataset": sum(of_clients) / len(of_clients),
        **{f"CPDR, {each}": discrepancy(each) for each in get_args(Distance)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("overrides", nargs="+")
    arguments = parser.parse_args()
    federation = prepare([*arguments.overrides, "algorithm=fedsc"])
    for round in range(1, arguments.rounds + 1):
        federation.run_round(round)
        row = {"round": float(round)} | strength(federation, round)
        if round == 1:
            print("\t".join(row))
        print("\t".join(f"{value:.3g}" for value in row.values()), flush=True)


if __name__ == "__main__":
    main()
