"""Signals of a command: real ones, to a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

CODE = 105
START = """
import os, sys, time
from shoal.runtime.interrupts import answer_signals, drain_first, explain_interrupt

def say(text):
    os.write(1, (text + "\\n").encode())

"""
ENDS = """
with answer_signals(say, 105):
    with explain_interrupt("the first part is over"):
        say("ready")
        time.sleep(600)
"""
CLEANS_UP_FOREVER = """
with answer_signals(say, 105):
    try:
        say("ready")
        time.sleep(600)
    finally:
        while True:
            try:
                say("cleaning up")
                time.sleep(600)
            except KeyboardInterrupt:
                say("swallowed")
"""
DRAINS = """
with answer_signals(say, 105):
    with drain_first("draining") as is_interrupted:
        say("ready")
        while not is_interrupted():
            time.sleep(0.01)
    say("drained")
    time.sleep(600)
"""


@contextmanager
def running(body: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", START + body]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert line_of(process) == "ready"
            yield process
        finally:
            process.kill()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_answered_by_what_the_command_does(number: signal.Signals) -> None:
    with running(ENDS) as process:
        process.send_signal(number)
        assert line_of(process) == f"{number.name}: the first part is over"
        assert process.wait(60) != 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_a_clean_up_that_does_not_end(number: signal.Signals) -> None:
    with running(CLEANS_UP_FOREVER) as process:
        process.send_signal(number)
        assert line_of(process).startswith(f"{number.name}: stopping")
        assert line_of(process) == "cleaning up"
        process.send_signal(number)
        assert line_of(process) == "ending now"
        assert line_of(process) == "swallowed"
        assert process.wait(60) == CODE


def test_the_third_signal_ends_at_once() -> None:
    with running(CLEANS_UP_FOREVER) as process:
        process.send_signal(signal.SIGINT)
        assert line_of(process) == "SIGINT: stopping; again to end at once"
        assert line_of(process) == "cleaning up"
        process.send_signal(signal.SIGINT)
        assert line_of(process) == "ending now"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == CODE


def test_a_phase_that_drains_is_not_torn_up() -> None:
    with running(DRAINS) as process:
        process.send_signal(signal.SIGTERM)
        assert line_of(process) == "SIGTERM: draining"
        assert line_of(process) == "drained"
        process.send_signal(signal.SIGTERM)
        assert line_of(process) == "ending now"
        assert process.wait(60) != 0
