import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision
from scipy.io import savemat
from support.torchvision_files import NAMES, WRITE, Name, accept_any_checksum, images

from fedexp.data.readers.torchvision_sets import TorchvisionDataset
from fedexp.errors import InputError


def dataset_of(
    name: Name,
    root: Path,
    download: bool,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> TorchvisionDataset:
    return TorchvisionDataset(name, root, download, mean, std)


@pytest.fixture
def any_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_any_checksum(monkeypatch)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise URLError("no network\nhere")

    monkeypatch.setattr("urllib.request.urlopen", refuse)


@pytest.mark.usefixtures("any_checksum", "offline")
@pytest.mark.parametrize("download", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_there_are_read(tmp_path: Path, name: Name, download: bool) -> None:
    WRITE[name](tmp_path)
    dataset = dataset_of(name, tmp_path, download).load(tmp_path / "unused")
    train_files = 5 if name == "cifar10" else 1
    expected_train = np.concatenate([images(name, 2, seed) for seed in range(train_files)])
    expected_labels = [label for seed in range(train_files) for label in (seed, 1)]
    assert torch.equal(dataset.train.inputs, torch.from_numpy(expected_train))
    assert dataset.train.labels.tolist() == expected_labels
    assert torch.equal(dataset.test.inputs, torch.from_numpy(images(name, 2, train_files)))
    assert dataset.test.labels.tolist() == [train_files, 1]
    for split in (dataset.train, dataset.test):
        assert split.inputs.is_contiguous()
        assert (split.inputs.dtype, split.labels.dtype) == (torch.uint8, torch.int64)
        assert split.inputs.shape[1:] == dataset.description.input_shape
    assert len(dataset.mean) == len(dataset.std) == dataset.description.input_shape[0]


@pytest.mark.parametrize(
    ("name", "count", "some"),
    [
        ("cifar10", 10, {0: "airplane", 3: "cat", 9: "truck"}),
        ("cifar100", 100, {0: "apple", 8: "bicycle", 50: "mouse", 99: "worm"}),
        ("fashion_mnist", 10, {0: "T-shirt/top", 9: "Ankle boot"}),
        ("svhn", 10, {0: "0", 9: "9"}),
    ],
)
def test_classes_are_known_before_the_download(
    tmp_path: Path, name: Name, count: int, some: dict[int, str]
) -> None:
    description = dataset_of(name, tmp_path, download=True).describe()
    assert description.num_classes == len(set(description.classes)) == count
    assert {label: description.classes[label] for label in some} == some
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", NAMES)
def test_a_failed_download_says_where_why_and_how(tmp_path: Path, name: Name) -> None:
    with pytest.raises(InputError) as caught:
        dataset_of(name, tmp_path, download=True).load(tmp_path / "unused")
    message = str(caught.value)
    assert message.startswith(f"data.root={tmp_path}: {name} in {tmp_path}")
    assert "downloading it failed" in message
    assert "no network here" in message
    assert "http" in message
    assert "\n" not in message


@pytest.mark.parametrize("name", NAMES)
def test_absent_files_are_an_error_where_no_download_is_allowed(tmp_path: Path, name: Name) -> None:
    with pytest.raises(InputError, match=r"is absent or incomplete; set data\.download=true, or"):
        dataset_of(name, tmp_path, download=False).describe()


def test_an_incomplete_folder_is_not_enough(tmp_path: Path) -> None:
    WRITE["cifar10"](tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").unlink()
    with pytest.raises(InputError, match="is absent or incomplete"):
        dataset_of("cifar10", tmp_path, download=False).describe()


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("download", "problem"), [(False, "is damaged"), (True, "absent or damaged, and downloading")]
)
def test_damaged_files_are_an_error(tmp_path: Path, download: bool, problem: str) -> None:
    """Their checksum is not the real one's."""
    WRITE["cifar10"](tmp_path)
    with pytest.raises(InputError, match=problem):
        dataset_of("cifar10", tmp_path, download).load(tmp_path / "unused")


@pytest.mark.usefixtures("any_checksum")
def test_a_label_beyond_the_classes_is_an_error(tmp_path: Path) -> None:
    WRITE["svhn"](tmp_path)
    pixels = images("svhn", 2, 0).transpose(2, 3, 1, 0)
    savemat(tmp_path / "train_32x32.mat", {"X": pixels, "y": np.array([[1], [12]])})
    with pytest.raises(InputError, match=r"training split of svhn has the label 12; .* 0 to 9$"):
        dataset_of("svhn", tmp_path, download=False).load(tmp_path / "unused")


def test_files_cut_short_are_an_error(tmp_path: Path) -> None:
    WRITE["fashion_mnist"](tmp_path)
    (tmp_path / "FashionMNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03")
    with pytest.raises(InputError, match="is damaged"):
        dataset_of("fashion_mnist", tmp_path, download=False).load(tmp_path / "unused")


class Mirror:
    """A folder stands in for torchvision's mirror; each file comes in two halves, slowly."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float = 0) -> None:
        WRITE["fashion_mnist"](folder)
        self.folder, self.seconds = folder / "FashionMNIST" / "raw", seconds
        self.fetched: list[str] = []
        monkeypatch.setattr(torchvision.datasets.mnist, "download_and_extract_archive", self)

    def __call__(self, url: str, download_root: str, filename: str, md5: str) -> None:
        content = (self.folder / Path(filename).stem).read_bytes()
        self.fetched.append(filename)
        path = Path(download_root) / Path(filename).stem
        path.write_bytes(content[: len(content) // 2])
        time.sleep(self.seconds)
        path.write_bytes(content)


def test_the_download_puts_files_below_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Mirror(tmp_path / "mirror", monkeypatch)
    dataset = dataset_of("fashion_mnist", tmp_path / "data", True).load(tmp_path / "unused")
    assert torch.equal(dataset.test.inputs, torch.from_numpy(images("fashion_mnist", 2, 1)))


def test_two_jobs_download_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits: it reads no half of a file, and downloads nothing."""
    mirror = Mirror(tmp_path / "mirror", monkeypatch, seconds=0.05)
    source = partial(dataset_of, "fashion_mnist", tmp_path / "data", True)
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(lambda: source().load(tmp_path / "unused")) for _ in range(4)]
    for each in found:
        expected = torch.from_numpy(images("fashion_mnist", 2, 0))
        assert torch.equal(each.result().train.inputs, expected)
    assert len(mirror.fetched) == 4


@pytest.mark.parametrize("size", [0, 3, 16, 1000])
@pytest.mark.parametrize("kind", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_raw_file_cut_short_is_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, size: int
) -> None:
    Mirror(tmp_path / "mirror", monkeypatch)
    WRITE["fashion_mnist"](tmp_path)
    path = tmp_path / "FashionMNIST" / "raw" / kind
    path.write_bytes(path.read_bytes()[: min(size, path.stat().st_size - 1)])
    dataset = dataset_of("fashion_mnist", tmp_path, True).load(tmp_path / "unused")
    assert torch.equal(dataset.train.inputs, torch.from_numpy(images("fashion_mnist", 2, 0)))
    assert dataset.test.labels.tolist() == [1, 1]


def test_the_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert dataset_of("svhn", Path("~/data"), True).root == tmp_path / "data"


@pytest.mark.usefixtures("any_checksum", "offline")
def test_given_constants_replace_the_usual_ones(tmp_path: Path) -> None:
    WRITE["fashion_mnist"](tmp_path)
    given = dataset_of("fashion_mnist", tmp_path, False, mean=(0.5,)).load(tmp_path / "unused")
    assert (given.mean, given.std) == ((0.5,), (0.3530,))
    given = dataset_of("fashion_mnist", tmp_path, False, std=(0.5,)).load(tmp_path / "unused")
    assert (given.mean, given.std) == ((0.2860,), (0.5,))


def test_constants_are_one_number_for_each_channel(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^data.std=\[0.5\]: must have 3 numbers, one for each channel$"
    ):
        dataset_of("cifar10", tmp_path, True, std=(0.5,))
