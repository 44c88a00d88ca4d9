"""Select the layers of a model that train, by the key ``model.train``."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import takewhile

from torch import nn

from fedexp.config.schema import Config
from fedexp.core.sockets import Personalization
from fedexp.errors import InputError

HEAD, BACKBONE = "head", "backbone"


def train_layers(backbone: nn.Module, paths: Sequence[str]) -> None:
    """Train only the backbone's parameters below ``paths``; fix all other parameters.

    A path consists of whole names between dots: ``layer1`` does not match ``layer10``. A path need
    not begin at the top of the backbone: ``layer4`` is found in a network that is wrapped for grey
    images. If a path matches at several depths, only the outermost matches train: ``conv1`` then
    means the first convolution of a ResNet, not the ``conv1`` of each block. The path ``backbone``
    means the whole backbone, and ``backbone.`` may precede a path.

    Raises:
        InputError: there is no parameter below a path.
    """
    names = [name for name, _ in backbone.named_parameters()]
    trained = {name for path in paths for name in _below(path, names)}
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(name in trained)


def train_head(head: nn.Module, paths: Sequence[str]) -> None:
    """Train only the head's parameters below one of ``paths``, such as ``head.bias``.

    The path ``head`` means the whole head. With this path the head may have no parameters.

    Raises:
        InputError: there is no parameter below one of the other paths.
    """
    names = [name for name, _ in head.named_parameters()]
    inner = [path.removeprefix(f"{HEAD}.") for path in paths if path != HEAD]
    trained = {name for path in inner for name in _below(path, names, f"{HEAD}.")}
    for name, parameter in head.named_parameters():
        parameter.requires_grad_(HEAD in paths or name in trained)


def check_trained(
    config: Config,
    backbone: nn.Module,
    parts: Mapping[str, object],
    personalization: Personalization,
) -> None:
    """Raise InputError if a phase of local training has no parameter to train.

    Args:
        config: the run's config.
        backbone: the backbone; it may be on the meta device.
        parts: name of the socket -> part in this socket.
        personalization: the part that defines the phases of local training.
    """
    trained = []
    for socket, part in {BACKBONE: backbone, **parts}.items():
        if isinstance(part, nn.Module):
            named = part.named_parameters(prefix=socket)
            trained += [name for name, value in named if value.requires_grad]
    phases = [*personalization.phases(1), *personalization.personal_phases(1)]
    for phase in (*phases, *personalization.tuning()):
        prefixes = tuple(each for each in phase.trainable if each != "loss.")  # a model is wanted
        if not any(name.startswith(prefixes) for name in trained):
            layers = " or ".join(prefix.rstrip(".") or "model" for prefix in prefixes)
            raise InputError(
                f"model.train={config.model.train}: a phase of local training has no parameter of "
                f"the {layers} to train; use other layers, another model or personalization"
            )


def split_paths(paths: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split ``paths`` into paths in the backbone and paths in the head."""
    in_head = [path for path in paths if path.split(".")[0] == HEAD]
    return [path for path in paths if path not in in_head], in_head


def _below(path: str, names: Sequence[str], prefix: str = "") -> list[str]:
    """The parameters in ``names`` below the outermost matches of ``path``.

    Raises InputError if there are none; its text contains ``prefix`` and ``path``.
    """
    wanted = path.split(".")
    if wanted[0] == BACKBONE:
        wanted = wanted[1:]
        depths = {name: 0 for name in names if name.split(".")[: len(wanted)] == wanted}
    else:
        depths = {name: depth for name in names if (depth := _depth(name, wanted)) is not None}
    outermost = min(depths.values(), default=0)
    found = [name for name, depth in depths.items() if depth == outermost]
    if not found:
        hint = _hint(path, names, prefix)
        raise InputError(f"model.train: the model has no parameter below {prefix}{path}; {hint}")
    return found


def _depth(name: str, wanted: list[str]) -> int | None:
    """How many parts of ``name`` precede ``wanted``; None if ``name`` lacks ``wanted``."""
    parts = name.split(".")
    starts = range(len(parts) - len(wanted) + 1)
    return next((at for at in starts if parts[at : at + len(wanted)] == wanted), None)


def _hint(path: str, names: Sequence[str], prefix: str) -> str:
    """Advice for a mistyped path: similar paths, or else the names of the outermost layers."""
    split = [name.split(".") for name in names]
    shared = takewhile(lambda level: len(set(level)) == 1, zip(*split, strict=False))
    outer = len(list(shared))
    paths = {".".join(parts[outer:end]) for parts in split for end in range(outer + 1, len(parts))}
    if close := get_close_matches(path, paths):
        return f"did you mean {', '.join(prefix + each for each in close)}?"
    first = dict.fromkeys(prefix + parts[outer] for parts in split if len(parts) > outer)
    return f"there are {', '.join([HEAD, *first])}"
