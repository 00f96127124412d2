"""Signals wait while torch traces, and no longer."""

from __future__ import annotations

import threading

import pytest

from qtool.core.shield import defer, defer_signals


class Ended(BaseException):
    pass


def fail() -> None:
    raise Ended


def test_outside_nothing_waits() -> None:
    assert not defer(fail)


def test_inside_it_waits_for_the_outermost_end() -> None:
    done = []

    def twice() -> None:
        with defer_signals():
            with defer_signals():
                assert defer(fail)
            done.append("the rest")

    with pytest.raises(Ended):
        twice()
    assert done == ["the rest"]
    with defer_signals():
        pass  # it was raised once


def test_it_comes_before_what_else_is_raised() -> None:
    def wrong() -> None:
        with defer_signals():
            defer(fail)
            raise ValueError

    with pytest.raises(Ended) as caught:
        wrong()
    assert isinstance(caught.value.__context__, ValueError)


def test_another_thread_is_given_no_signals() -> None:
    entered, leave = threading.Event(), threading.Event()

    def trace() -> None:
        with defer_signals():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=trace)
    thread.start()
    entered.wait(10)
    assert not defer(fail)
    leave.set()
    thread.join()
