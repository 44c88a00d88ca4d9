"""What a population that is drawn on demand cannot do."""

from fedexp.config.schema import Config
from fedexp.data.partitions import natural
from fedexp.runtime.required_values import Wanted, check_required


def check_on_demand(config: Config, partition: object) -> None:
    """Raise InputError if the config needs the samples of all clients at once.

    Args:
        config: of a run whose data are a ``DrawnSource``.
        partition: the function of the partition that it asks for.
    """
    name = getattr(partition, "__name__", "another")
    attack, surface = config.evaluation.membership.attack, config.tracking.loss_surface.rounds
    wanted: Wanted = (
        ("partition", "natural" if partition is natural else name, "natural"),
        ("partition.test_split", config.partition.test_split, "users"),
        ("partition.long_tail", config.partition.long_tail, None),
        ("data.subset", config.data.subset, None),
        ("data.validation", config.data.validation, 0),
        ("evaluation.membership.attack", attack, "off"),
        ("tracking.loss_surface.rounds", surface, []),
    )
    own = "the clients of these data have samples of their own"
    check_required(wanted, f"{own}, drawn on demand and never all at once")
