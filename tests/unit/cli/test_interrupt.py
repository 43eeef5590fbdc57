"""Ctrl-C in a process of its own: once stops gracefully, twice ends at once."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import os, signal
from gristmill.cli.interrupt import StopOnSignal

before = signal.getsignal(signal.SIGINT)  # a job in the background may have it ignored
with StopOnSignal() as stop:
    assert not stop.requested()
    for number in SIGNALS:
        os.kill(os.getpid(), number)
    assert stop.requested()
assert signal.getsignal(signal.SIGINT) is before
print("stopped gracefully")
"""


def run_with(*signals: signal.Signals) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.replace("SIGNALS", repr([int(number) for number in signals]))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_the_first_signal_asks_to_stop():
    for number in (signal.SIGINT, signal.SIGTERM):
        done = run_with(number)

        assert (done.returncode, done.stdout) == (0, "stopped gracefully\n"), done.stderr
        assert "Press Ctrl-C again to end at once" in done.stderr


def test_the_second_signal_ends_at_once():
    done = run_with(signal.SIGINT, signal.SIGINT)

    assert (done.returncode, done.stdout) == (130, "")
