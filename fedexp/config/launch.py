"""How a run was started."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """How a run was started, for the record.

    Attributes:
        overrides: what the command line changed.
        choices: group -> option, for example ``{"algorithm": "fedavg"}``.
        sweep: the name of the sweep that the run is a job of, if any.
    """

    overrides: list[str]
    choices: dict[str, str | None]
    sweep: str | None = None
