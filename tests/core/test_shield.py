"""Signals, and progress."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from qtool.core.progress import show_progress, track, track_task
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


def test_stages_are_logged_whether_or_not_they_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="qtool")
    with track_task("all"):
        assert list(track("part", [1, 2])) == [1, 2]
    with pytest.raises(ValueError, match="bad"), track_task("fails"):
        raise ValueError("bad")
    with track_task("next"):
        pass
    logged = [(r.levelname, re.sub(r"\d\.\d s", "", r.getMessage())) for r in caplog.records]
    assert logged == [("DEBUG", "part:  (2 steps)"), ("INFO", "all: "), ("INFO", "next: ")]


def test_work_in_work_is_shown() -> None:
    seen: list[str] = []

    @contextmanager
    def display(title: str, total: int | None) -> Iterator[Callable[[], None]]:
        seen.append(f"{title} of {total}")
        yield lambda: seen.append(f"{title} advanced")
        seen.append(f"{title} done")

    with show_progress(display):
        with track_task("all"):
            assert list(track("part", [1, 2])) == [1, 2]
        with pytest.raises(ValueError, match="bad"), track_task("rest"):
            raise ValueError("bad")
    assert list(track("later", [3])) == [3]
    assert seen == [
        "all of None", "part of 2", "part advanced", "part advanced", "part done",
        "all advanced", "all done", "rest of None",
    ]  # fmt: skip
