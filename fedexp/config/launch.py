"""How a run was started."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """How a run was started, for the record.

    Attributes:
        overrides: the overrides on the command line.
        choices: group -> option, for example ``{"algorithm": "fedavg"}``.
        sweep: the name of the run's sweep, if it is a job of one.
    """

    overrides: list[str]
    choices: dict[str, str | None]
    sweep: str | None = None
