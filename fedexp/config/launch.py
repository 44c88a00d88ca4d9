"""How a run was started."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """How a run was started; it is saved with the run.

    Attributes:
        overrides: the overrides on the command line.
        choices: config group -> chosen option, for example ``{"algorithm": "fedavg"}``.
        sweep: the name of the sweep that the run belongs to; None for a single run.
    """

    overrides: list[str]
    choices: dict[str, str | None]
    sweep: str | None = None
