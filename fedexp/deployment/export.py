"""Writes a trained model to one file that PyTorch can load without fedexp."""

import io
import json
import logging
import warnings
from dataclasses import asdict
from pathlib import Path

import torch
from torch.export import Dim, ExportedProgram

from fedexp.deployment.predictor import Predictor
from fedexp.errors import InputError
from fedexp.state.atomic import write_atomically

CLASSES, INPUTS = "classes.json", "inputs.json"
"""Extra files inside the exported file: the names of the classes in order, and the input's form."""

_COUNTS = (1, 5)
"""Numbers of inputs for which the exported program's results are compared with the model's."""


def export(predictor: Predictor, path: Path) -> None:
    """Write the model to ``path`` (.pt2), a file for ``torch.export.load``.

    The exported program takes any number of raw inputs as one tensor, in the form that
    ``Predictor.preparation.read`` returns. It returns the probability of each class.

    Raises:
        InputError: ``path`` does not end in .pt2, PyTorch cannot export the model, the exported
            program computes other probabilities, or the file cannot be written.
    """
    if path.suffix != ".pt2":
        raise InputError(f"--to {path}: should end in .pt2, as PyTorch's exported programs do")
    program = _exported(predictor)
    _compare(predictor, program)
    preparation = predictor.preparation
    inputs = {
        "takes": preparation.form,
        "dtype": str(preparation.dtype).removeprefix("torch."),
        "shape": [None, *preparation.shape],
        **asdict(preparation),
    }
    extra = {CLASSES: json.dumps(predictor.classes), INPUTS: json.dumps(inputs, indent=2)}
    content = io.BytesIO()  # first to memory, because PyTorch hides errors of files
    torch.export.save(program, content, extra_files=extra)
    try:
        write_atomically(path, content.getbuffer())
    except OSError as error:
        raise InputError(f"--to {path}: cannot be written ({error.strerror})") from error


def _exported(predictor: Predictor) -> ExportedProgram:
    example = (predictor.preparation.examples(2),)
    shapes = ({0: Dim("batch", min=1)},)
    logging.getLogger("torch.export").setLevel(logging.ERROR)
    try:
        # Export without functions of oneDNN, because some CPUs lack them.
        portable = torch.backends.mkldnn.flags(enabled=False)
        with warnings.catch_warnings(action="ignore"), torch.no_grad(), portable:
            return torch.export.export(predictor.network, example, dynamic_shapes=shapes)
    except Exception as error:  # its type depends on the network
        reason = next(filter(None, map(str.strip, str(error).splitlines())), "no reason given")
        raise InputError(
            f"{predictor.name}: PyTorch cannot export this model "
            f"({type(error).__name__}: {reason[:200]}); use fedexp.load"
        ) from error


def _compare(predictor: Predictor, program: ExportedProgram) -> None:
    """Raise InputError if the exported program's probabilities differ from the model's."""
    for count in _COUNTS:
        raw = predictor.preparation.examples(count)
        try:
            with torch.no_grad():
                torch.testing.assert_close(program.module()(raw), predictor.network(raw))
        except (AssertionError, RuntimeError) as error:
            raise InputError(
                f"{predictor.name}: the exported model predicts something else for {count} inputs "
                f"({str(error).partition(chr(10))[0]}); use fedexp.load"
            ) from error
