"""Partitions: which client gets which training samples.

A partition is a pure function. It can take ``labels`` [n] (class of each sample), ``users`` [n]
(user of each sample), ``num_samples`` n, ``num_clients`` N, ``seed``, and options. For each client,
it returns the sorted int64 positions of the client's samples. Every sample goes to exactly one
client, but ``natural`` and ``flwr`` may leave out samples. A client may be empty.

``long_tail`` is no partition; it removes samples before the partition.
"""

from fedexp.data.partitions.dirichlet import dirichlet
from fedexp.data.partitions.flwr import flwr
from fedexp.data.partitions.iid import iid
from fedexp.data.partitions.long_tail import long_tail
from fedexp.data.partitions.multi_alpha import multi_alpha
from fedexp.data.partitions.natural import natural
from fedexp.data.partitions.nid2 import nid2
from fedexp.data.partitions.per_client_alpha import per_client_alpha
from fedexp.data.partitions.shards import shards

__all__ = [
    "dirichlet",
    "flwr",
    "iid",
    "long_tail",
    "multi_alpha",
    "natural",
    "nid2",
    "per_client_alpha",
    "shards",
]
