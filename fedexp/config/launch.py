"""How a run was started."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Launch:
    """How a run was started; it is saved with the run.

    Attributes:
        overrides: the overrides on the command line.
        choices: config group -> chosen option, for example ``{"algorithm": "fedavg"}``.
        sweep: the name of the sweep that the run belongs to; None for a single run.
        origins: key of ``tracking.wandb`` -> where its value comes from; see
            ``fedexp.config.wandb_variables.origins``.
    """

    overrides: list[str]
    choices: dict[str, str | None]
    sweep: str | None = None
    origins: dict[str, str] = field(default_factory=dict)
