"""pFedLA: each client gets a mixture of all clients' models, with learned shares for each layer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Size, Tensor, nn

from fedexp.contract import PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.named_tensors import floats, prefixed, with_prefix
from fedexp.core.randomness import seeded
from fedexp.models.layers import dense
from fedexp.personalization.client_models import MixesModels
from fedexp.personalization.server_network import ServerNetwork
from fedexp.regularizers.layers import layers_of


class LayerShares(nn.Module):
    """A client's network: gives the share of each client in each layer of this client's model.

    The embedding v is standard normal at first. A fully connected body follows, and one linear
    layer with a ReLU for the L N values, whose weights are uniform in [0, 1) and whose biases are 0
    at first. So all shares are nearly equal at first.

    Args:
        layers: L, the number of layers.
        clients: N, the size of the population.
        embedding_dim: width of v.
        hidden_dim: width of the three layers of the body.
    """

    def __init__(self, layers: int, clients: int, embedding_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.shape = (layers, clients)
        self.embedding = nn.Parameter(torch.randn(embedding_dim))
        self.body = dense([embedding_dim, *[hidden_dim] * 3])[:-1]  # without the last ReLU
        self.last = nn.Linear(hidden_dim, layers * clients)
        nn.init.uniform_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, among: Tensor) -> Tensor:
        """The shares [L, N]; each row sums to 1, or is 0 if the network gives 0 for all clients.

        Args:
            among: the clients that can have a share, [N], 1 or 0.
        """
        values = self.last(self.body(self.embedding).relu()).relu().view(self.shape) * among
        sums = values.sum(dim=1, keepdim=True)
        shares: Tensor = values / torch.where(sums > 0, sums, 1)
        return shares


class PFedLA(MixesModels):
    """Mixes all clients' models for each client, with learned shares (Ma et al., CVPR 2022).

    The server stores the latest trained model theta_j of each client. In each layer l client i gets

        $m_i^l = sum_j a_ij^l theta_j^l$ with the shares $a_i = HN_i(v_i; psi_i)$.

    It trains m_i to theta_i. HN_i is the server's network for client i (``LayerShares``) with the
    parameters psi_i and v_i. With the change $D = m_i - theta_i$ the server takes a step of SGD,
    whose gradients are $(d m_i / d psi_i)^T D$ and $(d m_i / d v_i)^T D$.

    A client's personal model is its trained model theta_i. The public implementations score the
    mixture m_i, before local training.

    The server's steps lower the client's loss. The two public implementations, by FL-bench's
    author, have the opposite sign. We found no code of the paper's authors, and the paper's text
    was not compared. A ReLU and the division by the sum make the shares sum to 1, as in these
    implementations.

    In the paper all clients train in all rounds. Here a client that has not trained yet has the
    share 0, and the first clients get the global model. If a layer's shares are all 0, the client
    gets its own layer. A layer is a module's weights and float buffers; integer buffers are the
    client's own. Buffers have no part in the gradient. The aggregator has no other use, and no
    global model is evaluated. HeurpFedLA, whose clients keep some layers, is not implemented.

    The models of clients that do not train in a round count as they are, so small cohorts slow the
    training down. The server stores a model and a network of about ``hidden_dim`` N L values for
    each client, which are on disk if they exceed ``clients.ram_gib``. Computing the message to one
    client takes about N D operations, where D is the size of the model.

    Args:
        embedding_dim: width of v_i.
        hidden_dim: width of the networks' layers.
        lr: the server's learning rate.
    """

    def __init__(
        self, embedding_dim: PositiveInt, hidden_dim: PositiveInt, lr: PositiveFloat
    ) -> None:
        super().__init__()
        self.widths, self.lr = (embedding_dim, hidden_dim), lr

    def setup(self, setting: Setting) -> None:
        """Make the store of the clients' models and networks."""
        super().setup(setting)
        self._seed, self._clients = setting.seed, setting.num_clients
        self._trained = setting.model.shared_parameters
        layers = layers_of(dict.fromkeys(setting.model.shared, Size()), "module")
        self._layers = sorted(set(layers.values()))
        self._row = {name: self._layers.index(layer) for name, layer in layers.items()}

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        """The message with the client's mixture of all clients' models.

        Until the first client has trained, the result is ``message``.
        """
        with torch.no_grad():
            mixture = self._mixture(self._shares(self._network(client)))
        own = with_prefix("model", self._stored[client]) if client in self._stored else {}
        model = message.weights | own | mixture
        weights = {name: model[name].to(w) for name, w in message.weights.items()}
        return replace(message, weights=weights)

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Train the networks of the cohort's clients; then store them, and the clients' models."""
        found = {}
        for update in updates:
            network = self._network(update.client)
            self._train(network, update.extras)
            parameters = {name: w.detach() for name, w in network.state_dict().items()}
            found[update.client] = prefixed("model", update.extras) | prefixed(
                "network", parameters
            )
        for client, own in found.items():
            self._stored[client] = own

    def _network(self, client: int) -> LayerShares:
        """The client's network, on the CPU."""
        with seeded(self._seed, "layer_shares", client):
            network = LayerShares(len(self._layers), self._clients, *self.widths)
        if client in self._stored:
            network.load_state_dict(with_prefix("network", self._stored[client]))
        return network

    def _shares(self, network: LayerShares) -> Tensor:
        """The shares [L, N], of the clients that have trained."""
        among = torch.zeros(self._clients)
        among[list(self._stored)] = 1
        shares: Tensor = network(among)
        return shares

    def _models(self) -> Iterator[tuple[int, Tensors]]:
        """Each client with its stored float weights, float64 on the CPU."""
        for client in self._stored:
            model = with_prefix("model", self._stored[client])
            yield client, {n: w.double().cpu() for n, w in floats(model).items()}

    def _mixture(self, shares: Tensor) -> Tensors:
        """The mixture of the clients' models, without layers whose shares are all 0."""
        mixture: Tensors = {}
        for client, model in self._models():
            for name, weight in model.items():
                row = shares[self._row[name]]
                if row.any():
                    mixture[name] = mixture.get(name, 0) + row[client].double() * weight
        return mixture

    def _train(self, network: LayerShares, trained: Tensors) -> None:
        """Take one step of SGD, given the weights that the client has trained."""
        shares = self._shares(network)
        mixture = self._mixture(shares.detach())
        changes = {n: w - trained[n].to(w) for n, w in mixture.items() if n in self._trained}
        gradients = torch.zeros_like(shares)
        for client, model in self._models():
            for name, change in changes.items():
                gradients[self._row[name], client] += (model[name] * change).sum()
        ServerNetwork(network, self.lr).descend([shares], [gradients])
