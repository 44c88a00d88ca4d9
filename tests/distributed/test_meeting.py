import logging
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedexp.distributed import meeting
from fedexp.distributed.meeting import meet
from fedexp.errors import InputError


@pytest.fixture
def port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        number: int = taken.getsockname()[1]
    return number


def test_ranks_meet_and_share_a_store(port: int) -> None:
    with ThreadPoolExecutor(3) as threads:
        ranks = [threads.submit(meet, "127.0.0.1", port, rank, 3, 60) for rank in (2, 1, 0)]
        late, middle, first = (each.result() for each in ranks)
    first.set("said", "hello")
    assert late.get("said") == middle.get("said") == b"hello"


def test_ranks_that_do_not_come_are_named(
    port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(meeting, "_QUIET_S", 0)
    with pytest.raises(InputError) as caught:
        meet("127.0.0.1", port, 0, 3, 0.2)
    line = f"engine.meeting_timeout=0.2: ranks 1, 2 of 3 did not come to 127.0.0.1:{port}; "
    assert str(caught.value).startswith(f"{line}MASTER_ADDR and MASTER_PORT set")
    said = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert said == [f"rank 0 waits for ranks 1, 2 of 3 at 127.0.0.1:{port}"]


def test_a_port_that_is_closed_is_named(port: int) -> None:
    with pytest.raises(InputError, match=rf"rank 0 of 2 did not come to 127\.0\.0\.1:{port}"):
        meet("127.0.0.1", port, 1, 2, 0.2)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"^127\.0\.0\.1:{port}: rank 0 of 2 cannot use it"):
            meet("127.0.0.1", port, 0, 2, 0.2)


def test_a_name_that_is_unknown_is_one_line() -> None:
    with pytest.raises(InputError) as caught:
        meet("no-such-machine.invalid", 29500, 1, 2, 60)
    line = "MASTER_ADDR=no-such-machine.invalid: rank 1 cannot resolve this name of the first"
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)
