"""The tracker for Weights & Biases (W&B). Its errors do not stop training."""

import logging
import os
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, ValidationError

from fedexp.config.schema import Wandb
from fedexp.config.wandb_variables import DISABLED, VARIABLES
from fedexp.drawing.data_figure import pixels
from fedexp.drawing.texts import printable
from fedexp.errors import InputError, first_line
from fedexp.state.files import digest
from fedexp.state.run_folder import CHECKPOINTS, DATA, FILE_NAME, PARTITION
from fedexp.tracking.failed_figures import leaving_out
from fedexp.tracking.figure_files import saved_figures
from fedexp.tracking.jsonl import PER_CLASS
from fedexp.tracking.run_name import columns
from fedexp.tracking.tracker import Record, RunInfo, Tracker
from fedexp.tracking.wandb_identity import WandbIdentity, identity_of, ignored_id, is_of_agent
from fedexp.tracking.wandb_upload import Upload, finish

if TYPE_CHECKING:
    import wandb

_DIGITS = 12
"""Number of hash digits in the name of a partition's artifact."""

_MODEL_FILES = (FILE_NAME, DATA, PARTITION)
"""The files of a run, besides the weights, that ``fedexp.load`` reads."""

_TAG_LENGTH = 64
_SECRET = ("KEY", "TOKEN", "PASSWORD")
"""Parts of names of variables whose values are never shown."""

_FLUSH_S = 1.0
"""Seconds after which a round is in the record's file, where the upload finds it."""

_OWN = {"silent": True, "console": "off"}
"""fedexp's settings of W&B, unless a variable such as ``WANDB_SILENT`` sets another value."""

_TELEMETRY = "opentelemetry"
"""The logger of W&B's statistics of its own use, whose failures are nobody's concern."""

_LOGGER = logging.getLogger(__name__)


def _checked(settings: Wandb) -> Wandb:
    """Return the settings, before data are read. Raises InputError for what W&B would refuse."""
    if settings.mode != "disabled":
        _check_variables()
        _check_folder(settings.dir)
    return settings


def _check_variables() -> None:
    """Raise InputError, which names the variable, if W&B refuses an environment variable."""
    found = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
    if not found:
        return
    import wandb

    for name, value in found.items():
        try:
            wandb.Settings().update_from_env_vars({name: value})
        except (ValueError, wandb.errors.UsageError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
            shown = "" if any(each in name for each in _SECRET) else f"={value}"
            raise InputError(f"{name}{shown}: W&B refuses it ({reason})") from None


def _check_folder(folder: Path | None) -> None:
    """Raise InputError if W&B's files cannot be written below ``folder``."""
    if folder is None:
        return
    folder = folder.expanduser()
    above = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        origin = f"{VARIABLES['dir']} or tracking.wandb.dir"
        raise InputError(f"{origin}={folder}: should be a folder that can be written")


class WandbTracker(Tracker):
    """Records the run as one W&B run, with files in ``wandb/`` in the run's folder.

    The record is always written to files, without W&B's server. With ``mode=online``, another
    process uploads the record meanwhile (see ``wandb_upload``), so a server that fails costs the
    run no time and the record no round. A failure to write turns this tracker off, with a warning.

    A resumed run logs its earlier rounds again, with their saved figures. Their tables are absent,
    because the files in the run's folder do not tell tables from logs.

    Args:
        run: the facts about the run. Its config and choices become the W&B config. Each choice is
            also a separate key there, so that dashboards can group runs by a choice (see
            ``run_name.columns``).
        settings: mode, project, names and so on; ``identity_of`` completes them. A resumed run
            keeps its identity, except for what the command line names.
    """

    closes_round = True

    def __init__(self, run: RunInfo, settings: Annotated[Wandb, AfterValidator(_checked)]) -> None:
        self._run: wandb.Run | None = None
        self._per_class: Mapping[str, float] = {}
        self._folder = run.folder if settings.artifact else None
        self._is_elsewhere = settings.dir is not None
        identity = identity_of(run, settings)
        _log_identity(run, settings, identity)
        self._upload: Upload | None = None
        self._limit_s, self._of_sweep = settings.finish_timeout, run.sweep is not None
        if settings.mode != "disabled":
            with self._guard("cannot record, going on without it"):
                self._run = _start(run, settings, identity)
        if self._run is not None:
            with suppress(OSError):  # a full disk is reported where results are written
                identity.save(run.folder)
            if settings.mode == "online":
                with self._guard("cannot upload, going on without it"):
                    self._upload = _upload(self._run, run, settings, identity)
                if run.past:
                    _LOGGER.info("W&B: resumed; an upload of all rounds replaces the earlier one")
        # The new W&B record has all rounds, because W&B cannot append to an older one: the record
        # that is uploaded last replaces the others.
        earlier, saved = [Record(0), *run.past] if run.past else [], saved_figures(run.folder)
        for record in earlier:
            self._log(record, saved.get(record.round, {}))

    def log(self, record: Record) -> None:
        """Log the round as one step of the W&B run."""
        self._log(record, {})

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Add the summary, close the W&B run and wait for its upload.

        Without a summary, the run is marked as failed.
        """
        if self._run is not None:
            self._close(self._run, summary)
        if self._upload is not None:  # a record that an error left open is not waited for
            finish(self._upload, self._limit_s if self._run else 0, self._of_sweep)
            self._upload = None

    def _close(self, run: "wandb.Run", summary: Mapping[str, Any] | None) -> None:
        with self._guard("finishing failed, its last numbers may be missing"):
            if self._per_class:
                run.summary[PER_CLASS] = _table(self._per_class)
            run.summary.update(flat_summary(summary or {}))
            if warnings := (summary or {}).get("warnings"):
                run.summary["warnings"] = "; ".join(warnings)
            if self._folder and summary is not None:
                _save_artifacts(run, self._folder)
            if self._upload is None and self._is_elsewhere:
                place = shlex.quote(str(Path(run.dir).parent))
                _LOGGER.info("Offline in W&B; to upload: wandb sync %s", place)
            run.finish(exit_code=int(summary is None))

    def _log(self, record: Record, saved: Mapping[str, Path]) -> None:
        """Log a round; ``saved`` has its figures that were drawn before the run was resumed."""
        self._per_class = record.per_class or self._per_class
        if self._run is not None:
            with self._guard("logging failed, going on without it"):
                self._run.log(_row(record, saved), step=record.round, commit=True)

    @contextmanager
    def _guard(self, consequence: str) -> Iterator[None]:
        """Report an error in one warning, and turn this tracker off."""
        try:
            yield
        except Exception as error:
            self._run = None
            _LOGGER.warning("W&B: %s (%s)", consequence, first_line(error))


def _log_identity(run: RunInfo, settings: Wandb, identity: WandbIdentity) -> None:
    """Log which of command line, preset, environment and default won."""
    if settings.mode != "disabled":
        if line := identity.line():
            _LOGGER.info("%s", printable(line))
        if line := ignored_id(run, settings, run.origins.get("id", "config")):
            _LOGGER.warning("%s", printable(line))
    elif (origin := identity.origins["mode"]) in (DISABLED, VARIABLES["mode"]):
        _LOGGER.info("W&B: mode=disabled (%s)", origin)


def _own(**others: Any) -> "wandb.Settings":
    """W&B's settings; a variable such as ``WANDB_SILENT`` replaces one of ``_OWN``."""
    import wandb

    own = {key: value for key, value in _OWN.items() if f"WANDB_{key.upper()}" not in os.environ}
    return wandb.Settings(**own, **others)


def _upload(started: "wandb.Run", run: RunInfo, settings: Wandb, identity: WandbIdentity) -> Upload:
    """Start the upload of a W&B run's record."""
    # W&B reads the variable once in a process.
    server = (os.environ.get("WANDB_BASE_URL") or started.settings.base_url).rstrip("/")
    record = Path(started.settings.sync_file)
    may_be_known = run.resumed or settings.id == started.id
    entity, project = (identity.values[key] or "" for key in ("entity", "project"))
    known = (entity, project, started.id) if may_be_known and not is_of_agent() else ()
    return Upload(record, server, settings.init_timeout, run.sweep is not None, known)


def _start(run: RunInfo, settings: Wandb, identity: WandbIdentity) -> "wandb.Run":
    """Start or resume the local record; an earlier W&B run of this process is finished first."""
    import wandb

    wandb.setup(_own())  # otherwise the login prints messages
    logging.getLogger(_TELEMETRY).setLevel(logging.CRITICAL)
    known = identity.values
    folder = settings.dir.expanduser() if settings.dir else run.folder
    folder.mkdir(parents=True, exist_ok=True)
    started = wandb.init(
        dir=folder,
        mode="offline",
        id=run.run_id,
        config={**run.config, **columns(run), "choices": dict(run.choices)},
        **{key: known[key] for key in ("project", "entity", "group", "job_type", "name", "notes")},
        tags=[tag[:_TAG_LENGTH] for tag in known["tags"]],
        reinit="finish_previous",
        settings=_own(x_transaction_log_flush_interval=_FLUSH_S),
    )
    started.define_metric("round")
    started.define_metric("*", step_metric="round")
    for name, better in run.headlines.items():  # so that W&B shows the best value so far
        best = "max" if better == "higher" else "min"
        started.define_metric(name, step_metric="round", summary=f"{best},last")
    return started


def _save_artifacts(run: "wandb.Run", folder: Path) -> None:
    """Save two artifacts: the model, as a folder for ``fedexp.load``, and the partition.

    Equal partitions have equal names, so W&B can show all runs that used the same partition.
    """
    import wandb

    try:
        model = wandb.Artifact(f"model-{run.id}", type="model")
        weights = (folder / CHECKPOINTS).glob("*.pt")
        for path in (*sorted(weights), *(folder / name for name in _MODEL_FILES)):
            if path.is_file():
                model.add_file(str(path), name=path.relative_to(folder).as_posix())
        run.log_artifact(model)
        if not (table := folder / PARTITION).is_file():
            return
        name = digest(table.read_bytes())[:_DIGITS]
        partition = wandb.Artifact(f"partition-{name}", type="partition")
        partition.add_file(str(table))
        run.log_artifact(partition)  # as an output: in a local record, W&B declares no inputs
    except Exception as error:
        reason = first_line(error)
        _LOGGER.warning("W&B: model and partition are not saved as artifacts (%s)", reason)


def save_report(folder: Path, entity: str, project: str, run_ids: Sequence[str]) -> None:
    """Save the files of a report as the artifact ``report``.

    The artifact belongs to a new W&B run of the job type ``report``. The inputs of this W&B run are
    the model artifacts of the runs that the report compares.

    Args:
        folder: the folder with the report's files.
        entity: the W&B user or team.
        project: the W&B project of the compared runs.
        run_ids: W&B's ids of the compared runs.

    Raises:
        InputError: W&B cannot be reached, or the files cannot be read.
    """
    import wandb

    try:
        wandb.setup(_own())
        with wandb.init(
            entity=entity,
            project=project,
            id=secrets.token_hex(4),  # not WANDB_RUN_ID, which is a compared run's
            name="report",
            job_type="report",
            dir=folder,
            mode="online",
            reinit="finish_previous",
        ) as run:
            for each in run_ids:
                with suppress(wandb.errors.CommError, ValueError):  # a run may have saved no model
                    run.use_artifact(f"model-{each}:latest")
            report = wandb.Artifact("report", type="report")
            for path in sorted(folder.rglob("*")):
                inside = path.relative_to(folder)
                if path.is_file() and inside.parts[0] != "wandb":
                    report.add_file(str(path), name=inside.as_posix())
            run.log_artifact(report)
    except (wandb.errors.Error, OSError) as error:
        reason = first_line(error)
        raise InputError(f"--wandb {entity}/{project}: files not saved ({reason})") from error


def _row(record: Record, saved: Mapping[str, Path]) -> dict[str, Any]:
    """The record of a round as a dict of W&B's types.

    The accuracies of the classes become a table. W&B stores each table as a file, so this table is
    logged only in rounds with figures. ``saved`` (name -> file) has the figures that were drawn
    before the run was resumed.
    """
    import wandb

    row: dict[str, Any] = {"round": record.round, **record.metrics}
    for name, figure in record.figures.items():
        with leaving_out(name, figure):
            row[name] = wandb.Image(pixels(figure))
    row |= {name: wandb.Image(str(path)) for name, path in saved.items()}
    if (record.figures or saved) and record.per_class:
        row[PER_CLASS] = _table(record.per_class)
    for name, table in record.tables.items():
        rows: list[Any] = [list(each) for each in zip(*table.values(), strict=True)]
        row[name] = wandb.Table(columns=list(table), data=rows)
    return row


def _table(per_class: Mapping[str, float]) -> "wandb.Table":
    import wandb

    rows: list[Any] = [[printable(name), value] for name, value in per_class.items()]
    return wandb.Table(columns=["class", "accuracy"], data=rows)


def flat_summary(summary: Mapping[str, Any]) -> dict[str, float]:
    """The run's numbers with names such as ``global/accuracy/final``, which become W&B's columns.

    ``cost/upload_bytes/total`` and the like are sums over the rounds.
    """
    found = {
        f"{name}/{statistic}": value
        for name, statistics in summary.get("metrics", {}).items()
        for statistic, value in statistics.items()
    }
    found |= {f"{name}/total": value for name, value in summary.get("total", {}).items()}
    return found | {key: summary[key] for key in ("wall_time_s",) if key in summary}
