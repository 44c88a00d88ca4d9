import logging

import pytest

from fedexp.core.log_levels import errors_only


def test_only_errors_are_logged_in_the_block(caplog: pytest.LogCaptureFixture) -> None:
    below = logging.getLogger("own.below")
    with errors_only("own"):
        below.warning("kept back")
        below.error("wrong")
    below.warning("said")
    assert caplog.messages == ["wrong", "said"]
