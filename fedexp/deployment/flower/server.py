"""Flower's ServerApp of an app: a run of fedexp whose clients are on nodes."""

import logging
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedexp.config.launch import Launch
from fedexp.deployment.flower.app import App, read_app
from fedexp.deployment.flower.nodes import Nodes, Patience
from fedexp.deployment.flower.own_code import make_importable
from fedexp.deployment.flower.own_config import dataset_digest, own_places, with_data
from fedexp.deployment.flower.places import OnNodes
from fedexp.deployment.flower.post import Post
from fedexp.deployment.flower.record import read_record
from fedexp.errors import InputError
from fedexp.runtime.early import check
from fedexp.runtime.execution import execute
from fedexp.runtime.result import RunResult
from fedexp.state.run_folder import AUTO, find_unfinished

LOGGER = logging.getLogger(__name__)


def server_app(folder: Path) -> ServerApp:
    """The ServerApp of the app in this module folder."""
    make_importable(folder)
    app, made = read_app(folder), ServerApp()

    def main(grid: Grid, context: Context) -> None:
        _log_to_stderr()
        try:
            result = serve(app, grid, context.run_config)
        except InputError as error:
            LOGGER.error("%s", error)
            raise
        LOGGER.info(
            "%s: %d rounds, digest of the final weights %s",
            result.folder,
            result.summary["rounds"],
            result.summary["weights_digest"],
        )

    made.main()(main)
    return made


def serve(app: App, grid: Grid, run_config: Mapping[str, Any]) -> RunResult:
    """Run the app on the nodes of the grid.

    Args:
        app: the config and the origin of the clients' data.
        grid: Flower's connection to the nodes.
        run_config: the values of ``[tool.flwr.app.config]``; ``--run-config`` replaces values.

    Raises:
        InputError: a value is wrong, or nodes are missing for too long.
    """
    config = with_data(app.config, own_places(run_config))
    root = Path(str(run_config["folder"])).expanduser().resolve()
    folder = find_unfinished(root, config) if run_config["resume"] else None
    config = config.model_copy(update={"resume": AUTO if folder else None})
    new = time.strftime("%Y-%m-%d/%H-%M-%S") + f"-{secrets.token_hex(2)}"
    if run_config["resume"] and folder is None:
        LOGGER.warning("resume=true: found no unfinished run of this app in %s", root)
    folder = folder or root / new
    LOGGER.info("the run's folder is %s", folder)
    early, record = check(config), read_record(folder)
    dataset = dataset_digest(early.description)
    nodes = Nodes(
        Post(grid), app.version, dataset, _patience(run_config), record.sizes, record.lost
    )
    population = OnNodes(app, nodes, record.run, folder, config.checkpoint.keep)
    return execute(config, folder, Launch(app.overrides, app.choices), early, population)


def _patience(run_config: Mapping[str, Any]) -> Patience:
    names = "min-clients", "wait-minutes", "reply-minutes"
    least, *minutes = (run_config[name] for name in names)
    if type(least) is not int or least < 1:
        raise InputError(f"min-clients={least}: should be a whole number of at least 1")
    for name, value in zip(names[1:], minutes, strict=True):
        if type(value) not in (int, float) or not value > 0:
            raise InputError(f"{name}={value}: should be a number above 0")
    return Patience(least, *map(float, minutes))


def _log_to_stderr() -> None:
    """Write fedexp's log to standard error, which Flower shows in ``flwr run --stream``."""
    logger = logging.getLogger("fedexp")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("fedexp: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
