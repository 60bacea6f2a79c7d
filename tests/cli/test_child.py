"""What a command that starts others does at signals."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import os
import signal
import time

from pgqueue.cli.child import interrupted_by_signals

signal.signal(signal.SIGHUP, signal.{hup})
signal.signal(signal.SIGTERM, signal.SIG_DFL)
before = [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)]
try:
    with interrupted_by_signals():
        for number in (signal.SIGHUP, signal.SIGTERM):
            print(number.name, flush=True)
            os.kill(os.getpid(), number)
        time.sleep(60)
except KeyboardInterrupt:
    assert [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)] == before
    print("interrupted")
"""


def _sent(hup: str) -> list[str]:
    """Return the signals that were sent until one of them interrupted the program."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(hup=hup)], capture_output=True, text=True, check=True, timeout=280
    )
    *sent, end = done.stdout.split()
    assert end == "interrupted"
    return sent


def test_a_closed_terminal_interrupts_a_command_that_starts_others() -> None:
    assert _sent("SIG_DFL") == ["SIGHUP"]


def test_under_nohup_only_another_signal_interrupts_it() -> None:
    assert _sent("SIG_IGN") == ["SIGHUP", "SIGTERM"]
