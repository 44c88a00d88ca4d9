"""How the samples of an epoch are divided into batches."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LastBatch:
    """What happens to the last batch of an epoch if it is short.

    The only batch of an epoch always stays, so every client with data takes a step. The default
    keeps a last batch of any size (``KEEP``).

    Attributes:
        shortest: the fewest samples with which a last batch stays as it is.
        merges: whether a shorter last batch joins the batch before. If false, an epoch leaves its
            samples out.
    """

    shortest: int = 1
    merges: bool = True

    def lengths(self, samples: int, batch_size: int) -> list[int]:
        """The number of samples in each batch of an epoch over ``samples`` samples.

        Its length is the number of steps of an epoch. Without samples there is one empty batch.
        """
        full, rest = divmod(samples, batch_size)
        lengths = [batch_size] * full
        if rest >= self.shortest or not full:
            return [*lengths, rest] if rest or not full else lengths
        if self.merges:
            lengths[-1] += rest
        return lengths

    def longest(self, samples: int, batch_size: int) -> int:
        """The most samples in a batch of a client with at most ``samples`` samples."""
        merged = self.shortest - 1 if self.merges else 0
        return min(samples, batch_size + merged)


KEEP = LastBatch()
"""Every last batch stays."""
