"""Modules of earlier versions and their new names, for configs that name the old ones."""

from collections.abc import Mapping
from typing import Any

MOVED: Mapping[str, str] = {
    "fedexp.data.digits": "fedexp.data.readers.digits",
    "fedexp.data.fc100": "fedexp.data.readers.fc100",
    "fedexp.data.fed_isic": "fedexp.data.readers.fed_isic",
    "fedexp.data.hugging_face": "fedexp.data.readers.hugging_face",
    "fedexp.data.image_folder": "fedexp.data.readers.image_folder",
    "fedexp.data.leaf": "fedexp.data.readers.leaf",
    "fedexp.data.spiral": "fedexp.data.readers.spiral",
    "fedexp.data.synthetic": "fedexp.data.readers.synthetic",
    "fedexp.data.tabular": "fedexp.data.readers.tabular",
    "fedexp.data.text": "fedexp.data.readers.text",
    "fedexp.data.tiny_imagenet": "fedexp.data.readers.tiny_imagenet",
    "fedexp.data.torchvision_sets": "fedexp.data.readers.torchvision_sets",
    "fedexp.papers.partitions": "fedexp.data.partitions.released",
}
"""Old module -> new module, for the modules that the key ``_target_`` of an option may name."""


def with_moved(node: Any) -> Any:
    """A config, or a part of one, in which no ``_target_`` names an old module."""
    if isinstance(node, list):
        return [with_moved(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    found = {key: with_moved(value) for key, value in node.items()}
    if isinstance(target := found.get("_target_"), str):
        module, _, name = target.rpartition(".")
        found["_target_"] = f"{MOVED.get(module, module)}.{name}" if module else name
    return found
