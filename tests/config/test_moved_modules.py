"""Classes of modules that have moved are found by their old names in saved and typed configs."""

from importlib import import_module
from importlib.util import find_spec

import pytest

from fedexp.cli.compose import composed
from fedexp.config import moved_modules
from fedexp.config.moved_modules import MOVED, with_moved
from fedexp.state.run_folder import Identity, parse_identity

OLD, NEW = "fedexp.old_losses.Plain", "fedexp.losses.cross_entropy.Plain"


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        moved_modules, "MOVED", {"fedexp.old_losses": "fedexp.losses.cross_entropy"}
    )


@pytest.mark.usefixtures("moved")
def test_only_a_target_in_a_moved_module_changes() -> None:
    saved = {"loss": {"_target_": OLD}, "tags": [OLD, {"_target_": OLD}], "head": {"_target_": "x"}}
    assert with_moved(saved) == {
        "loss": {"_target_": NEW},
        "tags": [OLD, {"_target_": NEW}],
        "head": {"_target_": "x"},
    }
    assert saved["loss"] == {"_target_": OLD}
    assert with_moved({"_target_": 3}) == {"_target_": 3}


@pytest.mark.usefixtures("moved")
def test_saved_and_typed_configs_agree() -> None:
    identity = parse_identity(Identity({"loss": {"_target_": OLD}}, "id").content)
    assert identity is not None
    assert identity.config["loss"] == {"_target_": NEW}
    assert composed([f"loss._target_={OLD}"]).config["loss"]["_target_"] == NEW


def test_the_old_modules_are_gone_and_the_new_ones_are_there() -> None:
    for old, new in MOVED.items():
        assert find_spec(new) is not None, new
        with pytest.raises(ModuleNotFoundError):
            import_module(old)
