"""Data with a target for each token: a batch of sequences becomes a batch of tokens."""

from torch import Tensor

from fedexp.core.forward import Forward

IGNORED = -100
"""The target of an ignored token, as in ``torch.nn.functional.cross_entropy``."""


def by_token(batch: Forward) -> Forward:
    """Turn a forward pass over sequences into one whose rows are tokens.

    Args:
        batch: z [B, L, d], logits [B, L, C], targets [B, L], and ``real`` [B] or None, for B
            sequences of L tokens; ``levels`` must be empty.

    Returns:
        z [B L, d], logits [B L, C], targets [B L]. Ignored tokens have target 0; ``real`` is 0 for
        ignored tokens and for padding.
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
    """The rows of ``targets`` and ``values`` that are scored.

    If each sample has a target (``targets`` [n], ``values`` [n, ...]), all rows are scored. If each
    token has a target ([n, L] and [n, L, ...]), the rows are the tokens that are not ignored, one
    sequence after another.
    """
    if targets.dim() == 1:
        return targets, *values
    scored = targets != IGNORED
    return targets[scored], *(value[scored] for value in values)
