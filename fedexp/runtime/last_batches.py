"""``local.last_batch``: the rule for the last batch, and batches too small for a BatchNorm."""

import logging

from fedexp.core.last_batch import KEEP, LastBatch
from fedexp.core.part import trained_samples
from fedexp.data.client_names import called, listed
from fedexp.data.federated import FederatedData
from fedexp.errors import InputError
from fedexp.models.shape import trains_on_one
from fedexp.runtime.plan import Plan

LOGGER = logging.getLogger(__name__)


def last_batch_of(plan: Plan) -> LastBatch:
    """The rule that ``local.last_batch`` names; ``auto`` depends on the model.

    With ``auto``, a last batch of one sample joins the batch before if the model has a BatchNorm
    that needs two. Otherwise every last batch stays.
    """
    size = plan.config.local.batch_size
    match plan.config.local.last_batch:
        case "keep":
            return KEEP
        case "drop":
            return LastBatch(shortest=size, merges=False)
        case "merge":
            return LastBatch(shortest=size)
        case "auto":
            return LastBatch(shortest=1 if _trains_on_one(plan) else 2)


def check_single_samples(plan: Plan, last: LastBatch, data: FederatedData) -> None:
    """See to it that no batch of training is too small for the model's BatchNorm.

    With ``local.last_batch=auto``, a client with one training sample is left out of ``data``, so it
    is a client without data.

    Raises:
        InputError: a batch would hold one sample, and the model has a BatchNorm that needs two.
    """
    local = plan.config.local
    parts = list(plan.sockets.by_name().values())
    sizes = {n: trained_samples(parts, size) for n, size in enumerate(data.sizes.tolist()) if size}
    held_out = {
        n: trained_samples(parts, each.num_samples) for n, each in data.held_out_clients.items()
    }
    tuned = held_out if plan.sockets.personalization.tuning() else {}
    has_single = {
        size: 1 in last.lengths(size, local.batch_size)
        for size in {*sizes.values(), *tuned.values()}
    }
    single = [client for client, size in (sizes | tuned).items() if has_single[size]]
    if not single or _trains_on_one(plan):
        return
    alone = [client for client in single if (sizes | tuned)[client] == 1]
    if local.last_batch != "auto" or alone != single or not data.can_leave_out:
        first = called(single[0], data.names)
        raise InputError(_why_too_small(plan, first, (sizes | tuned)[single[0]]))
    if len(alone) == len(sizes | tuned):
        raise InputError(
            "local.last_batch=auto: every client has one training sample, too few for this "
            "model's BatchNorm; use a model without BatchNorm, or fewer clients"
        )
    LOGGER.warning(
        "local.last_batch=auto: clients with one training sample, too few for this model's "
        "BatchNorm, take no part: %s",
        listed(alone, data.names),
    )
    data.leave_out(alone)


def _why_too_small(plan: Plan, client: str, size: int) -> str:
    """The error line for the first client with a batch of one sample; it has ``size`` samples."""
    local = plan.config.local
    key = f"local.last_batch={local.last_batch}"
    if local.batch_size == 1:
        return (
            f"{key}: every batch of local.batch_size=1 holds one sample, too few for this model's "
            "BatchNorm; use local.batch_size=2 or more, or a model without BatchNorm"
        )
    if size > 1:
        return (
            f"{key}: the last batch of client {client} would hold one sample, too few for this "
            "model's BatchNorm; use local.last_batch=auto, drop or merge"
        )
    advice = "use local.last_batch=auto, which leaves the client out, or a model without BatchNorm"
    if local.last_batch == "auto":
        advice = "use a model without BatchNorm"
    return (
        f"{key}: client {client} has one training sample, too few for this model's BatchNorm; "
        f"{advice}"
    )


def _trains_on_one(plan: Plan) -> bool:
    return trains_on_one(plan.backbone, plan.description.input_shape)
