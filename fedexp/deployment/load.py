"""``fedexp.load``: the trained model of a run, without its training data."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedexp.config.schema import Common, Config, validate
from fedexp.core.client import ClientModule
from fedexp.core.description import Description
from fedexp.core.messages import Tensors
from fedexp.core.part import Clients
from fedexp.core.saved_state import load_saved, predicting
from fedexp.data import partitions
from fedexp.data.description_file import Described, read_description
from fedexp.data.partition_table import read_partition
from fedexp.deployment.predictor import Network, Predictor
from fedexp.errors import InputError, readable
from fedexp.measures.training import Training
from fedexp.models.weights import without_initial_weights
from fedexp.runtime.assembly import resident_module, setting_without_data
from fedexp.runtime.plan import plan
from fedexp.state.files import check_finite, load_tensors
from fedexp.state.run_folder import FILE_NAME, FINAL, PARTITION, model_files, read, saved_weights
from fedexp.state.saved_models import load_personal_model
from fedexp.system.availability import Availability
from fedexp.system.table import Table


def load(run: str | Path, model: str = FINAL, client: int | None = None) -> Predictor:
    """Load a trained model that takes raw inputs; the training data are not needed.

    Networks and parts that you wrote must be importable, as in training. The files of a run hold
    only tensors and text. But ``run.json`` names classes, and loading imports and calls these
    classes. So load only runs that you trust.

    Args:
        run: the run's folder.
        model: the global model to load: "final" is the model after the last round, "best" the best
            model on validation data. Only runs with ``data.validation`` have a best model.
        client: the number of a client, to load this client's personal model from the run's newest
            checkpoint instead.

    Returns:
        The model on the CPU, with ``predict``, ``predict_proba`` and ``classes``.

    Raises:
        InputError: the folder has no such model, a file is damaged, or the model holds NaN or Inf.
    """
    folder = Path(run).expanduser()
    config = _config(folder)
    about, preparation = read_description(folder)
    module = _untrained(folder, config, about)
    state = _global_weights(folder, model)
    try:
        load_saved(module, state)
        if client is not None:
            module.load(_personal_weights(folder, config, module, client))
        elif not module.personalization.has_global:
            raise InputError(
                f"{folder}: the method has no global model; name a client for its personal model"
            )
    except (RuntimeError, KeyError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{folder}: the weights do not fit the model ({reason})") from error
    network = Network(preparation, module.eval(), personal=client is not None)
    kind = f"{model} global model" if client is None else f"personal model of client {client}"
    return Predictor(
        network.eval().requires_grad_(False), about.classes, preparation, f"{kind} of {folder}"
    )


def _config(folder: Path) -> Config:
    """The run's config. Raises InputError if the folder has none."""
    try:
        with readable(folder):
            found = read(folder)
    except RecursionError:
        raise InputError(f"{folder / FILE_NAME}: is nested too deeply") from None
    if found is None:
        raise InputError(f"{folder}: is no folder of a run; it has no run.json")
    return validate(dict(found.config))


def _untrained(folder: Path, config: Config, about: Description) -> ClientModule:
    """Build the run's model with all tensors of the trained model; their values come later."""
    with without_initial_weights():
        planned = plan(_independent(config, about))
        module = resident_module(planned)
    counts = read_partition(folder / PARTITION, config.clients.count, about.num_classes)
    unknown = Clients(torch.zeros(config.clients.count, dtype=torch.int64))
    clients = unknown if counts is None else Clients.of(counts)
    setting = setting_without_data(planned, module, clients)
    for part in (module.head, module.personalization):
        part.setup(setting)
    module.finish_setup()
    return module


def _independent(config: Config, about: Description) -> Config:
    """A config with the same model that needs no files of training, and fewer libraries.

    It has other data, partition, devices, availability, measures and trackers.
    """
    update: dict[str, Any] = {
        "data": _with_option(config.data, Described, description=about),
        "partition": _with_option(config.partition, partitions.iid),
        "availability": {"_target_": _path(Availability)},
        "measure": {"training": {"_target_": _path(Training)}},
        "objective": "train/loss",
        "tracking": config.tracking.model_copy(
            update={"trackers": {"jsonl": config.tracking.trackers.get("jsonl")}}
        ),
    }
    if "file" in config.system.node:  # some devices, because parts of the method may need them
        update["system"] = _with_option(config.system, Table, file="phones")
    return config.model_copy(update=update)


def _with_option(group: Common, target: Callable[..., object], **arguments: Any) -> Common:
    """The group with the same common keys, and with ``target`` and its arguments as the option."""
    common = {name: getattr(group, name) for name in type(group).model_fields}
    return group.model_validate({**common, "_target_": _path(target), **arguments})


def _path(target: Callable[..., object]) -> str:
    """The dotted path of a class or a function."""
    return f"{target.__module__}.{target.__qualname__}"


def _global_weights(folder: Path, model: str) -> Tensors:
    path = saved_weights(folder, model)
    found = [each.stem for each in model_files(folder)]
    if model not in found:  # so a name with slashes cannot leave the folder
        there = ", ".join(found) or "none: it is not finished"
        advice = "; data.validation makes a run keep its best model" if model == "best" else ""
        raise InputError(f"{folder}: has no model {model}; models of this run: {there}{advice}")
    with readable(path):
        weights = load_tensors(path)
    check_finite(predicting(weights), path)
    return weights


def _personal_weights(folder: Path, config: Config, module: ClientModule, client: int) -> Tensors:
    """The weights of a personal model, except fixed weights. Raises InputError if there is none."""
    count = config.clients.count
    if not 0 <= client < count:
        raise InputError(f"client={client}: the run has the clients 0 to {count - 1}")
    if tuning := module.personalization.tuning():
        tunes = any(phase.epochs for phase in tuning)
        raise InputError(
            f"client={client}: this method "
            + ("tunes a personal model on the client's data" if tunes else "makes a personal model")
            + " when it is scored, and does not keep it; load the global model"
            + (" and tune it" if tunes else ", if there is one")
        )
    return load_personal_model(folder, client)
