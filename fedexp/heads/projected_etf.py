"""FedETF: a projection of the features, in front of a fixed simplex classifier."""

from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import normalize

from fedexp.config.compatibility.traits import FIXED_CLASSIFIER, TUNED_CLASSIFIER
from fedexp.core.sockets import Head
from fedexp.errors import InputError
from fedexp.heads.sphere import Scale, cosine_logits, simplex


class ProjectedETF(Head):
    """A trained projection of the features, and a fixed simplex classifier on it (FedETF).

    The projection of the features z is $u = P z + b$, and $logits_c = s V_c . u / |u|$ (Li et al.,
    ICCV 2023, Eq. 4). The rows V_c of V are unit vectors that form a random simplex equiangular
    tight frame. V is the same in all models, except in tuned personal models if ``tuned`` is true.
    The matrix P, b and s (the paper's temperature beta) are trained and shared.

    Args:
        feature_dim: d.
        num_classes: C.
        dim: width of u, at least C - 1. If None, it is d.
        scale: s, the factor of the cosines.
        tuned: whether clients train V when they tune their personal models. If false, V is
            constant.

    Raises:
        InputError: u has too few dimensions for a simplex of C vectors.
    """

    before_output = ("projection",)

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        dim: PositiveInt | None,
        scale: Scale,
        tuned: bool,
    ) -> None:
        super().__init__()
        width = feature_dim if dim is None else dim
        if width < num_classes - 1:
            raise InputError(
                f"head.dim={width}: is too small for {num_classes} classes; use at least "
                f"{num_classes - 1}"
            )
        self.projection = nn.Linear(feature_dim, width)
        self.scale = scale.build()
        # Without a gradient V is a fixed weight: neither trained nor sent.
        self.weight = nn.Parameter(simplex(num_classes, width), requires_grad=tuned)
        if not tuned:
            return
        self.traits = frozenset({TUNED_CLASSIFIER})
        self.needs = {
            FIXED_CLASSIFIER: "head.tuned=true: local training would change the simplex; needs "
            "personalization=fedetf, or should be false"
        }

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]."""
        return cosine_logits(self.projection(z), self.weight, self.scale)

    def normalize(self, z: Tensor) -> Tensor:
        """The projections u of the features, scaled to unit length, [B, width of u]."""
        return normalize(self.projection(z), eps=1e-12)

    def prototypes(self) -> Tensor:
        """The rows of the classifier V, one for each class."""
        return self.weight.detach()
