"""Keys that name files or folders."""

from typing import Any

import pytest

from fedexp.verification.places import moved, places, unread


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"data": {"seed": 0}, "system": None}, []),
        ({"data": {"path": "table", "test_path": None}}, ["data.path"]),
        ({"data": {"root": "~/data"}}, ["data.root"]),
        ({"data": {"name": "owner/set-v1.5"}, "system": {"file": "phones"}}, []),
        (
            {"data": {"name": "/elsewhere/set"}, "system": {"file": "a.csv"}},
            ["data.name", "system.file"],
        ),
        ({"model": {"weights": "imagenet", "start_from": None}}, []),
        (
            {"model": {"weights": "a/b.pth", "start_from": "b.pt"}},
            ["model.weights", "model.start_from"],
        ),
    ],
)
def test_which_keys_name_a_file(config: dict[str, Any], expected: list[str]) -> None:
    assert places(config) == expected


def test_only_a_file_that_the_config_has_moves() -> None:
    config = {"data": {"path": "a.csv", "test_path": None}, "rounds": 2}
    here = {"data.path": "/b.csv", "data.test_path": "/c.csv", "system.file": "/d.csv"}
    assert moved(config, here) == {"data": {"path": "/b.csv", "test_path": None}, "rounds": 2}
    assert config["data"] == {"path": "a.csv", "test_path": None}
    assert unread(config, here) == [
        "data.test_path=/c.csv has no effect: this run has no data.test_path",
        "system.file=/d.csv has no effect: this run has no system.file",
    ]
