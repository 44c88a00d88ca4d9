"""The contract of parts in one import: the sockets, and the types that their hooks take and return.

The modules in ``fedexp.core`` define and explain these names.
"""

from fedexp.core.client_protocol import Batch, Client, Functional, GradientAt, LocalData
from fedexp.core.forward import Forward, Outputs
from fedexp.core.messages import Message, PartMessage, PartUpdate, Tensors, Update
from fedexp.core.part import Clients, Memory, Model, Part, ServerTools, Setting, TensorStore
from fedexp.core.reducible import Contribution
from fedexp.core.sockets import (
    Aggregator,
    Head,
    LocalGradient,
    Loss,
    Network,
    Personalization,
    Phase,
    Regularizer,
)
