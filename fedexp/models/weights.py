"""Load a network's weights from a file, for example torchvision's ImageNet weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from urllib.error import URLError

import torch
from torch import Tensor, nn

from fedexp.errors import InputError, readable
from fedexp.state.files import check_finite, load_tensors

_UNUSED = ("aux1.", "aux2.", "AuxLogits.")  # auxiliary classifiers, which backbones do not have
_BACKBONE = "backbone."  # begins the names of the backbone's weights in a whole model
_COUNTER = ".num_batches_tracked"  # of BatchNorm; may be absent, because only momentum=None uses it


_READS = ContextVar("reads_initial_weights", default=True)


@contextmanager
def without_initial_weights() -> Iterator[None]:
    """In the ``with`` block, networks are built without reading initial weights from files.

    Use this to load a trained model, whose weights replace all initial weights anyway.
    """
    token = _READS.set(False)
    try:
        yield
    finally:
        _READS.reset(token)


def reads_initial_weights() -> bool:
    """Whether to read initial weights: false inside ``without_initial_weights``."""
    return _READS.get()


def load_weights(network: nn.Module, weights: str, name: str, replaced: Sequence[str]) -> None:
    """Copy weights into ``network``, except into replaced layers.

    If the network is on PyTorch's meta device, the file is only checked, and downloaded if needed.

    Args:
        network: a torchvision network; its parameters and buffers have torchvision's names.
        weights: path of a state dict that ``torch.save`` wrote; or "imagenet" for torchvision's
            best weights, which are downloaded unless they are in torchvision's cache.
        name: torchvision's name of the network.
        replaced: prefixes of the names of replaced layers, such as ``fc.``. These layers keep their
            weights.

    Raises:
        InputError: the file is missing, is not a state dict or belongs to another network.
    """
    if not reads_initial_weights():
        return
    file = str(_imagenet_file(name)) if weights == "imagenet" else weights
    load_file(network, file, f"model.weights={weights}", name, replaced, "imagenet")


def load_file(
    network: nn.Module,
    file: str,
    setting: str,
    name: str,
    replaced: Sequence[str] = (),
    alternative: str | None = None,
) -> None:
    """Copy the state dict in a file into ``network``; see ``load_weights``.

    If the file holds a whole model, as a run's ``final.pt`` does, only the backbone is copied.
    Error messages contain ``setting`` (the config's key and value) and ``alternative`` (the value
    of the key that means the library's own weights).
    """
    if not reads_initial_weights():
        return
    path, kept, own = Path(file).expanduser(), tuple(replaced), network.state_dict()
    if not path.is_file():
        others = ", ".join(filter(None, ["null", alternative]))
        raise InputError(
            f"{setting}: there is no file {path.absolute()}; should be {others} or the path of a "
            "state dict"
        )
    given = _read(path, setting, left_out=(*kept, *_UNUSED))
    wanted = {key: value for key, value in own.items() if not key.startswith(kept)}
    for key in sorted(given.keys() | wanted.keys()):
        found, expected = _shape(given, key), _shape(wanted, key)
        if found != expected and not key.endswith(_COUNTER):
            raise InputError(
                f"{setting}: does not fit {name} here: {key} is {found} in {path}, "
                f"{expected} in the model"
            )
    if not any(value.is_meta for value in wanted.values()):
        network.load_state_dict(own | given)


def _shape(state: dict[str, Tensor], key: str) -> str:
    return str(list(state[key].shape)) if key in state else "absent"


def _read(path: Path, setting: str, left_out: tuple[str, ...]) -> dict[str, Tensor]:
    """The backbone's tensors in the file, on the CPU, without names that begin as in ``left_out``.

    Raises InputError, which begins with ``setting``, if the file is unreadable or has NaN or Inf.
    """
    try:
        with readable(path):
            state = load_tensors(path)
        if whole := {key: value for key, value in state.items() if key.startswith(_BACKBONE)}:
            state = {key.removeprefix(_BACKBONE): value for key, value in whole.items()}
        given = {key: value for key, value in state.items() if not key.startswith(left_out)}
        check_finite(given, path)
    except InputError as error:
        raise InputError(f"{setting}: {error}") from None
    return given


def _imagenet_file(name: str) -> Path:
    """The file with torchvision's best ImageNet weights of a network, downloaded if missing.

    Raises:
        InputError: torchvision has no such weights, or the download fails.
    """
    from torchvision import models  # slow to import

    try:
        url: str = models.get_model_weights(name).DEFAULT.url
    except (AttributeError, ValueError) as error:
        raise InputError(f"model.weights=imagenet: torchvision has none for {name}") from error
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    path = folder / url.rpartition("/")[2]
    if not path.is_file():
        try:
            torch.hub.load_state_dict_from_url(
                url, str(folder), "cpu", progress=False, check_hash=True
            )
        except (URLError, OSError, RuntimeError) as error:
            raise InputError(
                f"model.weights=imagenet: {path} is missing, and {url} cannot be downloaded "
                f"({error}); put the file there, or set model.weights to its path"
            ) from error
    return path
