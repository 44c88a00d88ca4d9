"""Partitions: which client gets which training samples.

Each is a pure function of its arguments. It takes what it needs of ``labels`` [n] (the class of
each sample), ``users`` [n] (who each sample came from), ``num_clients`` N and ``seed``, and its own
options. It returns one sorted int64 index array for each client. Every sample goes to exactly one
client; ``natural`` alone leaves out users that are not taken. A client may be empty.
"""

from fedexp.data.partitions.dirichlet import dirichlet
from fedexp.data.partitions.dirichlet_fednh import dirichlet_fednh
from fedexp.data.partitions.dirichlet_recut import dirichlet_recut
from fedexp.data.partitions.flwr import flwr
from fedexp.data.partitions.iid import iid
from fedexp.data.partitions.legacy_dirichlet import legacy_dirichlet
from fedexp.data.partitions.long_tail import long_tail
from fedexp.data.partitions.multi_alpha import multi_alpha
from fedexp.data.partitions.natural import natural
from fedexp.data.partitions.nid2 import nid2
from fedexp.data.partitions.per_client_alpha import per_client_alpha
from fedexp.data.partitions.shards import shards

__all__ = [
    "dirichlet",
    "dirichlet_fednh",
    "dirichlet_recut",
    "flwr",
    "iid",
    "legacy_dirichlet",
    "long_tail",
    "multi_alpha",
    "natural",
    "nid2",
    "per_client_alpha",
    "shards",
]
