import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.refusals import refused

from fedexp.data import image_decoding
from fedexp.data.cache import cached_images
from fedexp.data.readers.image_folder import ImageFolder
from fedexp.data.readers.image_statistics import channel_statistics
from fedexp.errors import InputError

ARGUMENTS: dict[str, Any] = {
    "image_size": None,
    "channels": 3,
    "test_fraction": 0.25,
    "split": "within",
    "split_seed": 0,
    "user_pattern": None,
    "mean": None,
    "std": None,
}


def reader(root: Path, **changes: Any) -> ImageFolder:
    return ImageFolder(root=root, **(ARGUMENTS | changes))


def write_image(path: Path, value: int, size: tuple[int, int] = (4, 5), mode: str = "RGB") -> None:
    """One colour: (value, value + 1, value + 2), or grey. ``size`` is (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colour = value if mode == "L" else (value, value + 1, value + 2)
    Image.new(mode, size, colour).save(path)


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """train/ and test/; training cats are 10 and 20, dogs 30 and 40, test images 50 and 60."""
    root = tmp_path / "pets"
    for path, value in {
        "train/cat/ann_1.png": 10,
        "train/cat/deep/bob_2.bmp": 20,
        "train/dog/ann_3.PNG": 30,
        "train/dog/bob_4.ppm": 40,
        "test/cat/cid_5.png": 50,
        "test/dog/ann_6.png": 60,
    }.items():
        write_image(root / path, value)
    (root / "train" / "cat" / "notes.txt").write_text("not an image")
    (root / "train" / "cat" / "._ann_1.png").write_text("left by a file manager")
    (root / "train" / ".hidden").mkdir()
    return root


@pytest.fixture
def single(tmp_path: Path) -> Path:
    """One tree: 8 cats of values 0 to 7, 4 dogs of values 100 to 103."""
    root = tmp_path / "pets"
    for i in range(8):
        write_image(root / "cat" / f"{i}.png", i)
    for i in range(4):
        write_image(root / "dog" / f"{i}.png", 100 + i)
    return root


def snapshot(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


def test_two_trees_are_the_two_splits(both: Path, tmp_path: Path) -> None:
    before = snapshot(both)
    dataset = reader(both).load(tmp_path / "cache")
    assert dataset.description.name == "pets"
    assert dataset.description.input_shape == (3, 5, 4)
    assert dataset.description.classes == ("cat", "dog")
    for split, values, labels in (
        (dataset.train, [10, 20, 30, 40], [0, 0, 1, 1]),
        (dataset.test, [50, 60], [0, 1]),
    ):
        expected = torch.tensor([[value, value + 1, value + 2] for value in values])
        assert torch.equal(
            split.inputs, expected.to(torch.uint8)[:, :, None, None].expand(-1, 3, 5, 4)
        )
        assert split.labels.tolist() == labels
        assert split.labels.dtype == torch.int64
        assert split.users is None
    assert snapshot(both) == before


def test_describe_opens_one_image_only(both: Path) -> None:
    for damaged in ("train/dog/ann_3.PNG", "test/cat/cid_5.png"):
        (both / damaged).write_bytes(b"")
    assert reader(both).describe().input_shape == (3, 5, 4)


def test_a_test_class_may_be_missing(both: Path, tmp_path: Path) -> None:
    (both / "test/cat/cid_5.png").unlink()
    (both / "test/cat").rmdir()
    assert reader(both).load(tmp_path / "cache").test.labels.tolist() == [1]


@pytest.mark.parametrize("below", [".", "train"])
def test_one_tree_is_split_by_class(single: Path, tmp_path: Path, below: str) -> None:
    root = single
    if below == "train":
        root = tmp_path / "parent"
        root.mkdir()
        single.rename(root / "train")
    dataset = reader(root).load(tmp_path / "cache")
    assert dataset.train.labels.bincount().tolist() == [6, 3]
    assert dataset.test.labels.bincount().tolist() == [2, 1]
    values = torch.cat([dataset.train.inputs, dataset.test.inputs])[:, 0, 0, 0]
    labels = torch.cat([dataset.train.labels, dataset.test.labels])
    assert sorted(values.tolist()) == [*range(8), *range(100, 104)]
    assert torch.equal(labels, (values >= 100).to(torch.int64))


def test_the_split_depends_on_its_seed_alone(single: Path, tmp_path: Path) -> None:
    tests = [
        reader(single, split_seed=seed).load(tmp_path / "cache").test.inputs for seed in (0, 0, 1)
    ]
    assert torch.equal(tests[0], tests[1])
    assert not torch.equal(tests[0], tests[2])


def test_images_are_resized_and_converted(both: Path, tmp_path: Path) -> None:
    write_image(both / "train/cat/ann_1.png", 7, size=(9, 2), mode="L")
    dataset = reader(both, image_size=6, channels=1).load(tmp_path / "cache")
    assert dataset.description.input_shape == (1, 6, 6)
    assert dataset.train.inputs.shape == (4, 1, 6, 6)
    assert (dataset.train.inputs[0] == 7).all()
    assert (dataset.train.inputs[1] == 21).all()  # the luminance of (20, 21, 22)


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 7, (7, 7, 7)),
        ("1", 1, (255, 255, 255)),
        ("LA", (7, 128), (7, 7, 7)),
        ("RGBA", (10, 20, 30, 0), (10, 20, 30)),  # whatever is transparent has a colour too
        ("I;16", 10 * 256 + 99, (10, 10, 10)),  # 16 bits become 8
    ],
)
def test_every_kind_of_pixel_becomes_what_channels_says(
    both: Path, tmp_path: Path, mode: str, colour: Any, expected: tuple[int, int, int]
) -> None:
    Image.new(mode, (4, 5), colour).save(both / "train/cat/ann_1.png")
    dataset = reader(both).load(tmp_path / "cache")
    assert dataset.train.inputs[0, :, 2, 2].tolist() == list(expected)
    assert dataset.train.inputs[1, :, 2, 2].tolist() == [20, 21, 22]


def test_a_palette_is_looked_up(both: Path, tmp_path: Path) -> None:
    image = Image.new("P", (4, 5), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    image.save(both / "train/cat/ann_1.png")
    dataset = reader(both).load(tmp_path / "cache")
    assert dataset.train.inputs[0, :, 2, 2].tolist() == [10, 20, 30]


def test_folders_that_link_to_each_other_have_an_end(both: Path, tmp_path: Path) -> None:
    expected = reader(both).load(tmp_path / "cache").train
    for name in ("one", "two"):
        (both / "train/cat/deep" / name).symlink_to(both / "train/cat")
    found = reader(both).load(tmp_path / "cache").train
    assert torch.equal(found.inputs, expected.inputs)


def test_folders_may_be_links(both: Path, tmp_path: Path) -> None:
    (both / "train/cat/deep").rename(tmp_path / "elsewhere")
    (both / "train/cat/deep").symlink_to(tmp_path / "elsewhere")
    assert len(reader(both).load(tmp_path / "cache").train) == 4


@pytest.mark.parametrize("locked", ["pets", "train", "cat", "deep"])
def test_a_folder_that_may_not_be_read_is_named(
    both: Path, monkeypatch: pytest.MonkeyPatch, locked: str
) -> None:
    """Told by stubs, as an administrator may read every folder."""

    def refusing(listing: Any) -> Any:
        def items(path: Any) -> Any:
            if Path(path).name == locked:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return listing(path)

        return items

    if locked == "pets":
        (both / "train").rename(both / "cat")
    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refusing(os.scandir))
        patched.setattr(os, "listdir", refusing(os.listdir))
        with pytest.raises(InputError, match=rf"/{locked}: cannot be read \(Permission denied\)$"):
            reader(both).describe()


@pytest.mark.parametrize(
    "change",
    [
        lambda root: write_image(root / "train/cat/ann_1.png", 99),
        lambda root: write_image(root / "train/cat/new.png", 99),
        lambda root: os.utime(root / "train/cat/ann_1.png", ns=(1, 1)),
    ],
)
def test_images_are_decoded_once_until_one_changes(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    cache = tmp_path / "cache"
    first = reader(both).load(cache)
    opened, decoded = image_decoding.opened, []

    def counted(path: Path) -> Any:
        decoded.append(path)
        return opened(path)

    monkeypatch.setattr(image_decoding, "opened", counted)
    assert torch.equal(reader(both).load(cache).train.inputs, first.train.inputs)
    assert decoded == []
    change(both)
    again = reader(both).load(cache)
    assert len(decoded) == len(again.train) + len(again.test)


@pytest.mark.parametrize("options", [{"image_size": 3}, {"channels": 1}])
def test_options_have_caches_of_their_own(
    both: Path, tmp_path: Path, options: dict[str, int]
) -> None:
    cache = tmp_path / "cache"
    for source in (reader(both), reader(both, **options)):
        assert source.load(cache).train.inputs.shape[1:] == source.describe().input_shape
    assert len(list((cache / "images").iterdir())) == 2


def test_several_chunks_and_threads_keep_the_order(
    single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = reader(single).load(tmp_path / "one")
    monkeypatch.setattr(image_decoding, "CHUNK", 5)
    monkeypatch.setattr(image_decoding, "SMALL", 0)
    found = reader(single).load(tmp_path / "many")
    assert torch.equal(found.train.inputs, expected.train.inputs)
    assert torch.equal(found.test.inputs, expected.test.inputs)


def test_the_progress_bar_is_for_many_images_and_leaves_stdout_alone(
    single: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the captured stream for a terminal
    reader(single).load(tmp_path / "few")
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr(image_decoding, "PROGRESS_ABOVE", 11)
    reader(single).load(tmp_path / "many")
    out, err = capsys.readouterr()
    assert out == ""
    assert "Decoding images" in err


def test_users_are_found_in_the_paths(both: Path, tmp_path: Path) -> None:
    dataset = reader(both, user_pattern=r"/([a-z]+)_\d\.\w+$").load(tmp_path / "cache")
    assert dataset.train.users is not None
    assert dataset.test.users is not None
    assert dataset.train.users.tolist() == ["ann", "bob", "ann", "bob"]
    assert dataset.test.users.tolist() == ["cid", "ann"]


def test_normalisation_is_measured_on_the_training_images(both: Path, tmp_path: Path) -> None:
    """Channel 0 holds 10, 20, 30, 40: mean 25, deviation sqrt(125); the others are brighter."""
    dataset = reader(both).load(tmp_path / "cache")
    assert dataset.mean == pytest.approx([25 / 255, 26 / 255, 27 / 255])
    assert dataset.std == pytest.approx([125**0.5 / 255] * 3)


def test_given_constants_are_used(both: Path, tmp_path: Path) -> None:
    constants = (0.1, 0.2, 0.3)
    dataset = reader(both, mean=constants).load(tmp_path / "cache")
    assert dataset.mean == constants
    assert dataset.std == pytest.approx([125**0.5 / 255] * 3)
    dataset = reader(both, mean=constants, std=constants).load(tmp_path / "cache")
    assert (dataset.mean, dataset.std) == (constants, constants)


def test_channel_statistics_of_more_images_than_one_chunk() -> None:
    images = np.random.default_rng(0).integers(0, 256, (1003, 2, 3, 3), dtype=np.uint8)
    images[:, 1] = 51
    mean, std = channel_statistics(images)
    first = images[:, 0].astype(np.float64) / 255
    assert mean == pytest.approx([first.mean(), 0.2])
    assert std == pytest.approx([first.std(), 1.0])


def test_large_sets_are_memory_mapped(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    expected = reader(both).load(tmp_path / "small")
    monkeypatch.setattr(image_decoding, "cached_images", partial(cached_images, map_above=0))
    found = reader(both).load(tmp_path / "large")
    assert torch.equal(found.train.inputs, expected.train.inputs)
    assert torch.equal(found.test.inputs, expected.test.inputs)
    assert not recwarn.list


def spoil_nothing(root: Path) -> None:
    pass


def remove_images(root: Path) -> None:
    for path in (root / "train/dog").iterdir():
        path.unlink()


def remove_test_images(root: Path) -> None:
    (root / "test/dog/ann_6.png").unlink()


def add_test_class(root: Path) -> None:
    write_image(root / "test/fish/7.png", 7)


def truncate(root: Path) -> None:
    Image.effect_noise((4, 5), 50).convert("RGB").save(root / "train/dog/ann_3.PNG")
    content = (root / "train/dog/ann_3.PNG").read_bytes()
    (root / "train/dog/ann_3.PNG").write_bytes(content[:60])


def replace_by_text(root: Path) -> None:
    (root / "test/cat/cid_5.png").write_text("not an image")


def replace_first_by_text(root: Path) -> None:
    (root / "train/cat/ann_1.png").write_text("not an image")


def remove_test_classes(root: Path) -> None:
    for path in sorted((root / "test").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def link_to_nothing(root: Path) -> None:
    (root / "train/cat/gone.png").symlink_to(root / "nowhere.png")


def widen_pixels(root: Path) -> None:
    pixels = np.full((5, 4), 0.5, dtype=np.float32)
    Image.fromarray(pixels).save(root / "train/dog/deep.tiff")


def enlarge(root: Path) -> None:
    write_image(root / "test/cat/cid_5.png", 5, size=(8, 6))


@pytest.mark.parametrize(
    ("corrupt", "options", "message"),
    [
        (remove_images, {}, r"^data\.root=.*train/dog is a class folder without images \(\.jpg"),
        (
            remove_test_images,
            {},
            r"^data\.root=.*test/dog is a class folder without images \(\.jpg",
        ),
        (add_test_class, {}, r"/test/fish/.*: the class 'fish' is not in the train"),
        (truncate, {}, r"train/dog/ann_3\.PNG: cannot be read as an image \(.+\)$"),
        (replace_by_text, {}, r"test/cat/cid_5\.png: cannot be read as an image \(.+\)$"),
        (replace_first_by_text, {}, r"train/cat/ann_1\.png: cannot be read as an image \(.+\)$"),
        (
            remove_test_classes,
            {},
            r"/test: holds no class folder; remove it to test on a share",
        ),
        (link_to_nothing, {}, r"train/cat/gone\.png: cannot be read \(No such file"),
        (widen_pixels, {}, r"train/dog/deep\.tiff: cannot be read as an image \(pixels of 32 bits"),
        (enlarge, {}, r"test/cat/cid_5\.png: is 8x6, others are 4x5; set data\.image_size="),
        (
            spoil_nothing,
            {"user_pattern": r"(bob)"},
            r"data\.user_pattern=\(bob\): finds .*cat/ann_1",
        ),
        (spoil_nothing, {"user_pattern": r"(x)?_"}, r"finds no user in train/cat/ann_1\.png"),
        (spoil_nothing, {"user_pattern": r"("}, r"data\.user_pattern=\(: is not a regular"),
        (spoil_nothing, {"user_pattern": r"\d"}, r"must have one group, has 0"),
        (spoil_nothing, {"mean": (0.5,)}, r"data\.mean=\[0\.5\]: must have 3 numbers"),
        (spoil_nothing, {"std": (1.0, 1.0)}, r"data\.std=\[1\.0, 1\.0\]: must have 3 numbers"),
    ],
)
def test_what_cannot_work_is_named_in_one_line(
    both: Path, tmp_path: Path, corrupt: Any, options: dict[str, Any], message: str
) -> None:
    corrupt(both)
    with refused(message):
        reader(both, **options).load(tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*.npy"))


def test_a_missing_root_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^data\.root=.*/nowhere: there is no such folder$"):
        reader(tmp_path / "nowhere").describe()


@pytest.mark.parametrize(("folders", "held"), [([], "none"), (["test"], "test")])
def test_a_root_without_classes_is_named(tmp_path: Path, folders: list[str], held: str) -> None:
    for name in folders:
        (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=rf"must hold a folder for each class, .* holds {held}$"):
        reader(tmp_path).describe()


@pytest.mark.parametrize(
    ("train", "test"),
    [("Train", "test"), ("training", "testing"), ("train", "val"), ("train", "Test")],
)
def test_a_split_under_other_names_is_neither_a_class_nor_left_out(
    both: Path, train: str, test: str
) -> None:
    (both / "train").rename(both / train)
    (both / "test").rename(both / test)
    names = ", ".join(sorted([train, test]))
    with pytest.raises(InputError, match=rf": holds {names}; name the folders of training and"):
        reader(both).describe()


def test_a_class_may_be_named_like_a_split(single: Path) -> None:
    (single / "dog").rename(single / "Val")
    assert reader(single).describe().num_classes == 2


def test_too_few_images_to_split_is_an_error(single: Path) -> None:
    for path in list((single / "dog").iterdir())[1:]:
        path.unlink()
    with pytest.raises(
        InputError, match=r"^data\.test_fraction=0\.25: cannot split 9 samples of 2"
    ):
        reader(single).describe()


def test_the_home_folder_is_expanded(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(both.parent))
    assert len(reader(Path("~/pets")).load(tmp_path / "cache").train) == 4


def test_cifar10_images(cifar10_images: Path, tmp_path: Path) -> None:
    """The measured constants are near CIFAR-10's published ones."""
    dataset = reader(cifar10_images).load(tmp_path / "cache")
    assert dataset.train.inputs.shape == (50000, 3, 32, 32)
    assert dataset.test.labels.bincount().tolist() == [1000] * 10
    assert dataset.mean == pytest.approx([0.4914, 0.4822, 0.4465], abs=0.002)
    assert dataset.std == pytest.approx([0.2470, 0.2435, 0.2616], abs=0.005)


def test_users_may_be_in_one_part_only(both: Path, tmp_path: Path) -> None:
    users = {"user_pattern": "(ann|bob|cid)", "split": "users"}
    with pytest.raises(InputError, match=r"^data\.split=users: needs data\.user_pattern"):
        reader(both, split="users")
    with pytest.raises(InputError, match=r"^data\.split=users: 1 users, such as ann, are both in"):
        reader(both, **users).load(tmp_path / "cache")
    tree = both / "train"  # two images by ann and two by bob
    loaded = reader(tree, **users).load(tmp_path / "cache")
    assert {*loaded.train.users, *loaded.test.users} == {"ann", "bob"}
    assert (len(loaded.train), len(loaded.test)) == (2, 2)
    assert len(set(loaded.train.users)) == len(set(loaded.test.users)) == 1
