"""Targets of single tokens: sequences in a batch become rows, one for each token."""

from torch import Tensor

from fedexp.core.forward import Forward

IGNORED = -100
"""The target of a token that is not scored, as in ``torch.nn.functional.cross_entropy``."""


def by_token(batch: Forward) -> Forward:
    """A forward pass whose rows are tokens, given one over sequences.

    Args:
        batch: z [B, L, d], logits [B, L, C], targets [B, L] and ``real`` [B] or None; no levels.

    Returns:
        z [B L, d], logits [B L, C], targets [B L]; ``real`` is 0 for ignored tokens, whose target
        is 0, and for padding.
    """
    scored = batch.targets != IGNORED
    real = scored.to(batch.logits.dtype)
    if batch.real is not None:
        real = real * batch.real.unsqueeze(1)
    return batch._replace(
        z=batch.z.flatten(0, 1),
        logits=batch.logits.flatten(0, 1),
        targets=batch.targets.where(scored, 0).flatten(),
        real=real.flatten(),
    )


def scored_rows(targets: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
    """``targets`` and ``values`` as rows of what is scored.

    Of samples with one target each, [n] and [n, ...], they are what is given; of tokens, [n, L] and
    [n, L, ...], the rows of those that are not ignored, sequence after sequence.
    """
    if targets.dim() == 1:
        return targets, *values
    scored = targets != IGNORED
    return targets[scored], *(each[scored] for each in values)
