"""Import W&B before Lightning, because W&B's import is slower later."""

from contextlib import suppress


def import_wandb() -> None:
    """Import what ``wandb.init`` would import.

    W&B makes pydantic search all loaded modules, and Lightning loads about 3,000 of them.
    """
    with suppress(ImportError):  # a module inside W&B, which another version may lack
        import wandb.sdk.launch  # noqa: F401
