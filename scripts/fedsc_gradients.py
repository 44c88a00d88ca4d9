"""How strong FedSC's contrast is beside the cross-entropy, round by round.

    python scripts/fedsc_gradients.py --rounds 6 OVERRIDES ...

After each round, for the global model's features z of 256 test samples: the mean length of z; the
mean of U(r), by which RPCL divides the cosine; and the norm of RPCL's gradient with respect to z,
divided by that of the cross-entropy's. OVERRIDES are those of fedexp; algorithm=fedsc is set.
"""

import argparse

import torch
import torch.nn.functional as F
from benchmark.rounds import prepare
from rich.console import Console
from rich.table import Table

from fedexp.federation import Federation
from fedexp.losses.rpcl_cpdr import RpclCpdr
from fedexp.losses.semantic import mean_distances, rpcl


def strength(federation: Federation, round: int) -> tuple[float, float, float]:
    """Length of z, U and the ratio of the gradients after this round."""
    module = federation.global_model(round).train()
    loss = module.loss
    assert isinstance(loss, RpclCpdr)
    inputs, labels = next(iter(federation.data.test.batches(256)))
    z = module.outputs(inputs).z.detach().requires_grad_()
    spread = mean_distances(z.detach(), loss.relational)
    contrast = rpcl(z, labels, loss.relational, loss.holds, loss.temperature, spread)
    (of_contrast,) = torch.autograd.grad(loss.rpcl_weight * contrast, z)
    (of_entropy,) = torch.autograd.grad(F.cross_entropy(module.head(z), labels), z)
    ratio = (of_contrast.norm() / of_entropy.norm()).item()
    return z.norm(dim=1).mean().item(), spread[loss.holds].mean().item(), ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("overrides", nargs="+")
    arguments = parser.parse_args()
    federation = prepare([*arguments.overrides, "algorithm=fedsc"])
    table = Table("round", "length of z", "U", "gradient of RPCL / of CE")
    for round in range(1, arguments.rounds + 1):
        federation.run_round(round)
        table.add_row(str(round), *(f"{each:.2f}" for each in strength(federation, round)))
    Console().print(table)


if __name__ == "__main__":
    main()
