"""Import W&B before Lightning, because W&B's import is slower later."""

from contextlib import suppress


def import_wandb() -> None:
    """Import what ``wandb.init`` would import.

    W&B makes pydantic search all loaded modules. That takes a second after Lightning has loaded
    3,000 of them, and a fifth of it before.
    """
    with suppress(ImportError):  # a module inside W&B, which another version may lack
        import wandb.sdk.launch  # noqa: F401
