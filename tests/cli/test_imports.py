import gc
import sys
from collections.abc import Iterator

import pytest

from fedexp.cli.imports import quick_imports


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()
    gc.enable()


def test_no_garbage_is_collected_and_later_searches_leave_these_objects_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "lightning", raising=False)
    before = gc.get_freeze_count()
    with quick_imports():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > before + 1000


def test_an_error_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lightning", raising=False)
    with pytest.raises(ValueError, match="inside"), quick_imports():
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_later_run_in_the_process_freezes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", sys)
    before = gc.get_freeze_count()
    with quick_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == before


def test_who_has_turned_collection_off_keeps_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "lightning", raising=False)
    gc.disable()
    with quick_imports():
        pass
    assert not gc.isenabled()
