"""Counts of the odd datasets of a module, printed at its end."""

from collections.abc import Iterator

import pytest
from support.odd_data import Outcomes


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> Iterator[Outcomes]:
    found = Outcomes()
    yield found
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        name = request.path.stem.removeprefix("test_").replace("_", " ")
        print(f"\n{name}: " + ", ".join(f"{n} {kind}" for kind, n in found.counts.items()))
