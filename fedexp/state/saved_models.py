"""Trained models in a run's folder: the global model, and clients' personal models."""

from pathlib import Path

import torch

from fedexp.core.messages import Tensors
from fedexp.errors import InputError, readable
from fedexp.state.atomic import sync, write_durably
from fedexp.state.checkpoint import CLIENTS, files_of
from fedexp.state.files import check_finite, check_tensors, digest, dump, load
from fedexp.state.run_folder import FINAL, checkpoint_folders, saved_weights


def save_weights(weights: Tensors, folder: Path, name: str = FINAL) -> Path:
    """Write a global model's tensors to ``folder/checkpoints/NAME.pt``."""
    path = saved_weights(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, dump({name: value.cpu() for name, value in weights.items()}))
    sync(folder)
    return path


def load_personal_model(folder: Path, client: int) -> Tensors:
    """The weights of a client's personal model in the newest checkpoint of a run, on the CPU.

    Raises:
        InputError: there is no checkpoint, it is damaged, or the client's model is not in it.
    """
    name = f"{CLIENTS}/{client}.pt"
    newest = next(iter(checkpoint_folders(folder)), None)
    if newest is None:
        raise InputError(
            f"{folder}: has no checkpoint; only checkpoints hold the clients' models, so run with "
            "checkpoint.keep of at least 1"
        )
    weights: Tensors = {}
    if name in (files := files_of(newest)):
        weights = _personal_model(newest / name, files[name])
    if not weights:
        raise InputError(
            f"{folder}: has no personal model of client {client}; the client has not trained, or "
            "the run did not keep its model; measure.personal.of=all keeps every client's model"
        )
    return weights


def _personal_model(path: Path, expected: str) -> Tensors:
    """The personal model in a client's file of a checkpoint; ``expected`` is the file's digest."""
    with readable(path):
        if digest(path.read_bytes()) != expected:
            raise InputError(f"{path}: cannot be read (it has changed)")
        state = load(path, torch.device("cpu"))
    weights = state.get("personal_model") if isinstance(state, dict) else None
    check_tensors(weights, path)
    found: Tensors = weights or {}
    check_finite(found, path)
    return found
