"""DP-FedAvg: the mean of clipped steps with noise, and the privacy loss so far."""

import logging
from collections.abc import Sequence
from itertools import chain
from typing import Annotated

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from fedexp.aggregators.accountant import Accountant
from fedexp.aggregators.clipping import clipping_metrics, norm_of, steps
from fedexp.config.compatibility.traits import (
    CHOOSES_BY_DEVICE,
    HIDES_COHORTS,
    NOT_THE_MEAN,
    OTHER_STARTS,
    TAKES_MORE,
    UNIFORM_COHORTS,
)
from fedexp.contract import Aggregator, Contribution, Setting, Tensors, Update
from fedexp.core.randomness import torch_generator
from fedexp.core.transfer import to_device
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)


class Private(Aggregator):
    """Averages the clients' clipped steps and adds Gaussian noise, for differential privacy.

    The next weights are $w^t + (sum_k clip(w_k - w^t) + N(0, (z S)^2 I)) / K$, with the current
    weights w^t, client k's trained weights w_k and the noise multiplier z (McMahan et al., ICLR
    2018, Alg. 1). clip scales a step down to norm S or less. Each client of the cohort has weight
    1, so that one client changes the sum by at most S in norm. K is the size of the drawn cohort
    (the paper's fixed denominator): a lost update counts as a step of 0. The method protects each
    client's whole data against everyone who sees the global models. The server must be trusted.

    ``privacy/epsilon`` is an approximation. Its formula assumes that each of the N clients with
    data takes part independently with probability $q = K / N$ (Poisson sampling); the proof does
    not cover cohorts of fixed size K. Nobody but the server may know who is in a cohort, and each
    client may know it of itself alone. In a simulation cohorts and noise come from the run's seed,
    so a person who knows the seed knows the cohorts and can subtract the noise. (In a deployment
    both have a secret seed.) A log line at the start states these limits.

    Epsilon covers the global models and all that is computed from them, such as the messages to
    the clients and ``final.pt``. It does not cover these:

    * Everything else in the run folder. Metrics, tables, figures and the log come from the clients'
      data without noise. Checkpoints contain the clients' private weights and memories, and how
      often each client was chosen, so that two checkpoints reveal cohorts. The best model
      (``best.pt``) is chosen by scores on data. Publish ``final.pt`` alone.
    * Facts that the method treats as public: which clients have data and their numbers of samples,
      the classes, and the statistics by which inputs are standardised.
    * Updates that are not finite. They are left out, and a round without any update adds no noise.
    * In a deployment that is resumed, the rounds after its checkpoint. The clients have seen their
      models, and the repeated rounds have other noise. With ``checkpoint.every=1`` it is at most
      one round for each time that the server was killed.

    A part is refused if it may take more from clients than this aggregator's result, such as a
    report, the weights of one client or class counts (``Part.takes_only_merged``). Also refused are
    buffers such as BatchNorm's, colluding attackers, and every sampler except ``sampler=random``
    with equal weights.

    Args:
        clip: S, the bound on a step's L2 norm.
        noise_multiplier: z; the noise has the standard deviation z S.
        delta: the delta of the logged (epsilon, delta) guarantee. It must be below 1 / N.
    """

    takes_only_merged = True
    saved = ("releases",)
    traits = frozenset({NOT_THE_MEAN, HIDES_COHORTS})
    discourages = dict.fromkeys(
        OTHER_STARTS,
        "aggregator=private: clips a client's distance from the global weights; this {other} may "
        "start clients from other weights, so that more than the client's own step is clipped",
    )
    # The accountant's bound holds for cohorts that are drawn independently of the data.
    needs = {
        UNIFORM_COHORTS: "aggregator=private: epsilon is known only for uniformly drawn cohorts; "
        "use sampler=random"
    }
    forbids = {
        TAKES_MORE: "aggregator=private: {other} may take more from clients than their merged "
        "weights, which epsilon would not cover; take another option (a class whose hooks take "
        "nothing else states takes_only_merged = True)",
        CHOOSES_BY_DEVICE: "{other}: decides by the clients' devices whose updates count; "
        "aggregator=private knows epsilon only for uniformly drawn cohorts",
    }

    def __init__(
        self,
        clip: PositiveFloat,
        noise_multiplier: PositiveFloat,
        delta: Annotated[float, Field(gt=0, lt=1)],
    ) -> None:
        self.clip, self.noise_multiplier, self.delta = clip, noise_multiplier, delta
        self.accountant = Accountant()
        self.releases = 0
        self._sums: Tensors = {}
        self._norms: list[float] = []
        self._last_norms: list[float] = []

    def setup(self, setting: Setting) -> None:
        """Compute q = K / N, the share of the N clients with data that is drawn in a round.

        Raises InputError if buffers would be sent or delta is too large.
        """
        if buffers := sorted(setting.model.shared - setting.model.parameters.keys()):
            raise InputError(
                f"aggregator=private: the model has buffers ({buffers[0]}) that noise would break; "
                "use a model without buffers, such as model.norm=group"
            )
        population = setting.clients.num_with_data
        if self.delta >= 1 / population:
            raise InputError(
                f"aggregator.delta={self.delta}: must be below 1/{population}, "
                "1 / (number of clients with data); use a smaller value"
            )
        secret = setting.server.secret_seed
        self.seed = setting.seed if secret is None else secret
        self.cohort = min(setting.clients_per_round, population)
        self.accountant.set(self.noise_multiplier, self.cohort / population)
        LOGGER.info(
            "aggregator=private: privacy/epsilon treats fixed-size cohorts (%d of %d clients) "
            "as Poisson samples%s",
            self.cohort,
            population,
            f"; a person who knows seed={self.seed} can subtract the noise"
            if secret is None
            else "",
        )

    def add(self, update: Update, current: Tensors) -> None:
        """Add one clipped step to the sums. Raises InputError if the update has reports."""
        if update.extras:
            raise InputError(
                f"aggregator=private: {' and '.join(sorted(update.extras))} sent the server more "
                "than weights, without noise"
            )
        step = steps(update.weights, current)
        norm = norm_of(step)
        self._norms.append(norm)
        scale = min(1.0, self.clip / norm) if norm > 0 else 1.0
        for name, value in step.items():
            self._sums[name] = self._sums.get(name, 0) + scale * value

    def contribution(self) -> Contribution:
        """The sums of the clipped steps, and the norms of the steps before clipping."""
        return Contribution(self._sums, self._norms)

    def set_reduced(self, sums: Tensors, items: Sequence[list[float]]) -> None:
        """Replace this process's sums and norms by the sums and norms of all processes."""
        self._sums, self._norms = sums, list(chain(*items))

    def merge(self, current: Tensors) -> Tensors:
        """The current weights plus one noisy step; ``current`` itself if no update arrived.

        The noise is drawn here, so the release counts here: epsilon includes results that the
        server then refuses.
        """
        if not self._norms:
            return current
        self.releases += 1
        generator = torch_generator(self.seed, "privacy", self.releases)
        merged = {
            name: (value + self._noised(self._sums[name], generator) / self.cohort).to(value.dtype)
            for name, value in current.items()
        }
        self._sums, self._last_norms, self._norms = {}, self._norms, []
        return merged

    def metrics(self) -> dict[str, float]:
        """(epsilon, delta) of all rounds so far, and the clipping metrics of this cohort."""
        return {
            "privacy/epsilon": self.accountant.epsilon(self.releases, self.delta),
            "privacy/delta": self.delta,
            **clipping_metrics(self._last_norms, self.clip),
        }

    def _noised(self, total: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(total.shape, generator=generator, dtype=torch.float64)
        return total + self.noise_multiplier * self.clip * to_device(noise, total.device)
