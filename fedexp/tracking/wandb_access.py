"""Whether something can be saved in a project on W&B's server."""

import os
from typing import Any

from fedexp.errors import InputError
from fedexp.tracking.wandb_upload import server_problem

_PATIENCE_S = 10.0


def check_access(entity: str, project: str, should_exist: bool) -> None:
    """Check server and login, and if ``should_exist`` also that the project exists.

    Raises:
        InputError: one of them is missing; the line says what to do.
    """
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    server = (os.environ.get("WANDB_BASE_URL") or wandb.setup().settings.base_url).rstrip("/")
    if problem := server_problem(server, _PATIENCE_S):
        raise InputError(f"{problem}; try again later, or set WANDB_BASE_URL to your server")
    try:
        found = wandb.Api().project(project, entity)
    except wandb.errors.AuthenticationError:
        advice = "`wandb login --relogin` stores another one"
        raise InputError(f"{server} refuses the key; {advice}") from None
    except wandb.errors.UsageError:
        raise InputError("not logged in to W&B; `wandb login` stores a key") from None
    if should_exist and not _exists(found):
        advice = f"a run with tracking.wandb.project={project} and mode=online makes one"
        raise InputError(f"no such project, or not yours; {advice}")


def _exists(project: Any) -> bool:
    try:
        return bool(project.id)
    except ValueError as error:
        return error.__cause__ is not None  # the server does not know this question
