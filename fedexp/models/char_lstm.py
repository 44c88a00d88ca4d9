"""A recurrent network for next-character prediction."""

from pydantic import PositiveInt
from torch import Tensor, nn

from fedexp.compatibility.unread import declares_unread
from fedexp.models.layers import Projection, project
from fedexp.models.lstm import LSTM


class CharLSTM(nn.Module):
    """An embedding and an LSTM; z is the LSTM's state after the last token, or after each token.

    Args:
        vocabulary: number of different tokens.
        embedding_dim: width of a token's embedding.
        hidden: width of the LSTM.
        layers: number of LSTM layers.
        per_token: whether to return the state after each token.
    """

    def __init__(
        self, vocabulary: int, embedding_dim: int, hidden: int, layers: int, per_token: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding_dim)
        self.lstm = LSTM(embedding_dim, hidden, layers, each_step=per_token)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ``tokens`` [B, L] int64 to z [B, hidden], or to [B, L, hidden] with ``per_token``."""
        z: Tensor = self.lstm(self.embedding(tokens))
        return z


@declares_unread(
    {
        "projection": {"feature_dim": (None,)},
    }
)
def char_lstm(
    input_shape: tuple[int, ...],
    vocabulary: int,
    embedding_dim: PositiveInt,
    hidden: PositiveInt,
    layers: PositiveInt,
    feature_dim: PositiveInt | None,
    projection: Projection,
    per_token: bool = False,
) -> nn.Module:
    """LEAF's network for Shakespeare (Caldas et al., 2018): an embedding and LSTM layers.

    FedGELA (Fan et al., NeurIPS 2023, Table 11) adds Linear-ReLU-Linear layers of width 256. Set
    ``feature_dim=256`` and ``projection="mlp"`` for these layers.

    Args:
        input_shape: [length] of the sequences; any length fits.
        vocabulary: number of different tokens; set by the dataset.
        embedding_dim: width of a token's embedding.
        hidden: width of the LSTM, and of the features without a projection.
        layers: number of LSTM layers.
        feature_dim: width of a projection after the network; None for no projection.
        projection: layers of the projection, see ``project``.
        per_token: whether to return features of each token; set by the dataset.
    """
    network = CharLSTM(vocabulary, embedding_dim, hidden, layers, per_token)
    return project(network, hidden, feature_dim, projection)
