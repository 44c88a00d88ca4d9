"""The data of all clients, as far as the server, or the node of one client, knows them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from fedexp.config.schema import Config
from fedexp.data.dataset import Describer
from fedexp.data.federated import ClientData, FederatedData
from fedexp.data.load import load_data
from fedexp.data.samples import Subset
from fedexp.errors import InputError


class KnownData(FederatedData):
    """The data that one machine knows: all clients' sizes, some clients' samples, a test split.

    Args:
        whole: the dataset on this machine.
        sizes: [N] int64, the number of training samples of each client.
        clients: client -> its data. A node has the samples of its own client. The server has
            all clients, without samples.
    """

    can_leave_out = False  # a client's samples are on its node

    def __init__(
        self, whole: FederatedData, sizes: Tensor, clients: Mapping[int, ClientData]
    ) -> None:
        vars(self).update({n: v for n, v in vars(whole).items() if n != "class_counts"})
        self._sizes, self._classes = sizes, whole.description.num_classes
        nobody = torch.arange(0, device=whole.train.labels.device)
        self.clients = cast(Sequence[ClientData], clients)
        self.held_out_clients = {}
        self.validation = Subset(whole.train, nobody)

    @property
    def sizes(self) -> Tensor:
        """[N] int64: the number of training samples of each client."""
        return self._sizes

    @property
    def class_counts(self) -> Tensor:  # type: ignore[override]
        """Always raises InputError; parts get class counts from ``Clients.all_class_counts``."""
        raise InputError("the class counts of all clients are not known in a federation on Flower")

    @property
    def counted(self) -> Tensor:
        """The clients with class counts known from the start, [0] int64: there are none."""
        return torch.arange(0)

    @property
    def counted_classes(self) -> Tensor:
        """The class counts of the clients in ``counted``, [0, C]."""
        return torch.zeros(0, self._classes, dtype=torch.int64)

    def classes_of(self, clients: Tensor) -> Tensor:
        """NaN instead of class counts, [n, C]; only figures use this, so no client is asked."""
        return torch.full((len(clients), self._classes), torch.nan)


def load_place(
    config: Config, own_data: bool, source: Describer, device: torch.device
) -> FederatedData:
    """Load the dataset on this machine. Raises InputError if it cannot be loaded or split.

    With ``own_data`` all samples belong to client 0. Otherwise they are divided among the clients
    as configured.
    """
    if own_data:
        one = config.clients.model_copy(update={"count": 1, "per_round": 1})
        config = config.model_copy(update={"clients": one})
    return load_data(config, source, device)


def data_of(client: int, whole: FederatedData, own_data: bool) -> ClientData:
    """The data of ``client``, taken from ``whole``, the dataset that its node has loaded."""
    return replace(whole.clients[0 if own_data else client], client=client)
