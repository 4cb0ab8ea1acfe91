"""The button of the demo: who may press it, and when it presses itself."""

import threading

from shoal.experiment.faults.leader_loss import Button


def wait_in_thread(button: Button, is_over: threading.Event) -> list[bool]:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(button.wait(is_over)))
    thread.start()
    thread.join(60)
    return found


def test_it_cannot_be_pressed_before_all_runs_are_ready() -> None:
    button = Button(2, press_after_s=3600)
    button.press()
    button.add_ready()
    button.press()
    assert (button.is_pressed, button.presses_in_s) == (False, None)
    button.add_ready()
    assert button.presses_in_s != 0.0
    button.press()
    assert button.is_pressed
    assert wait_in_thread(button, threading.Event()) == [True]


def test_it_presses_itself() -> None:
    button = Button(1, press_after_s=0)
    button.add_ready()
    assert wait_in_thread(button, threading.Event()) == [True]
    assert button.is_pressed


def test_a_run_that_is_over_waits_no_longer() -> None:
    button = Button(2, press_after_s=0)
    button.add_ready()
    is_over = threading.Event()
    is_over.set()
    assert wait_in_thread(button, is_over) == [False]
    assert not button.is_pressed
