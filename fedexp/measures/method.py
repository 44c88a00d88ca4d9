"""The metrics and figures of the method's own parts."""

from matplotlib.figure import Figure

from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Measure, Measured


class Method(Measure):
    """The parts' own metrics after each round, and their own figures after the last one."""

    def __call__(self, after: AfterRound) -> Measured:
        """Metrics of ``Part.metrics``; in the last round the figures of ``Part.figures``."""
        figures: dict[str, Figure] = {}
        if after.is_last and after.ranks.is_first:
            for name, part in after.server.parts.items():
                memories = after.resources.store.memories(name)
                figures |= part.figures(memories, after.data.description)
        return Measured(metrics=after.server.metrics(), figures=figures)
