import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from fedexp.runtime.interrupts import Interrupts


@pytest.fixture(autouse=True)
def _usual_interrupts() -> Iterator[None]:
    """A shell lets what it starts in the background ignore Ctrl-C; here it is as in a terminal."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_waits_and_the_second_does_not(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts() as interrupts:
        assert interrupts.received is None
        os.kill(os.getpid(), number)
        assert interrupts.received == number
        assert "a second time stops at once" in capfd.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert before == [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]


def test_another_thread_has_no_handlers_to_set() -> None:
    asked: list[object] = []

    def work() -> None:
        with Interrupts() as interrupts:
            asked.append(interrupts.received)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert asked == [None]


EXIT = """
import atexit, os, signal
from pathlib import Path
from fedexp.runtime.interrupts import exit_on_interrupt

signal.signal(signal.SIGINT, signal.default_int_handler)
if {blocked}:
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT}})
atexit.register(print, "never reached", flush=True)
atexit.register(os.kill, os.getpid(), signal.SIGINT)
with exit_on_interrupt(Path("run")):
    raise KeyboardInterrupt
"""


@pytest.mark.parametrize("blocked", [False, True], ids=["run", "parent of a sweep"])
def test_another_ctrl_c_while_python_exits_has_no_traceback(blocked: bool) -> None:
    """As when a library's function at exit is interrupted."""
    command = [sys.executable, "-c", EXIT.format(blocked=blocked)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.stderr == (
        "fedexp: interrupted; to go on, add resume=run (or resume=auto) to the same command\n"
    )
    assert ended.returncode == -signal.SIGINT
    assert ended.stdout == ""
