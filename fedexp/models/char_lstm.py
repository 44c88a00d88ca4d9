"""The recurrent network for the next character of a text."""

from pydantic import PositiveInt
from torch import Tensor, nn

from fedexp.models.layers import Projection, project
from fedexp.models.lstm import LSTM


class CharLSTM(nn.Module):
    """Token ids [B, L], embedded and read by an LSTM: its state after the last token, or each one.

    Args:
        vocabulary: number of different tokens.
        embedding_dim: width of a token's embedding.
        hidden: width of the LSTM.
        layers: of the LSTM.
        per_token: whether the state after each token is wanted.
    """

    def __init__(
        self, vocabulary: int, embedding_dim: int, hidden: int, layers: int, per_token: bool
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding_dim)
        self.lstm = LSTM(embedding_dim, hidden, layers, each_step=per_token)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, hidden] for ``tokens`` [B, L] int64; [B, L, hidden] with ``per_token``."""
        z: Tensor = self.lstm(self.embedding(tokens))
        return z


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

    FedGELA (Fan et al., NeurIPS 2023, Table 11) adds Linear-ReLU-Linear of width 256, which is
    ``feature_dim=256`` with ``projection="mlp"``.

    Args:
        input_shape: [length] of the sequences; any length fits.
        vocabulary: number of different tokens; the dataset says it.
        embedding_dim: width of a token's embedding.
        hidden: width of the LSTM, which is that of the features.
        layers: of the LSTM.
        feature_dim: None for the LSTM's own width, or the width of a projection after it.
        projection: its layers, see ``project``.
        per_token: whether each token has features; the dataset says it.
    """
    network = CharLSTM(vocabulary, embedding_dim, hidden, layers, per_token)
    return project(network, hidden, feature_dim, projection)
