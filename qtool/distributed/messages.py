"""What ranks of a session say to each other."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from qtool.core.errors import RanksError, describe
from qtool.distributed.heartbeat import Failure, Heartbeat
from qtool.distributed.process_group import Group


class OtherRankError(RanksError):
    """Another rank failed, and says so itself. code: the exit code of a command."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.code = failure.code


class Channel:
    """Texts through the group's store, under a prefix of the session; bytes through its backend.

    Every wait ends as soon as a rank has failed.
    """

    def __init__(self, group: Group, number: int) -> None:
        place = f"qtool/{group.name}/{number}"
        self.group = group
        self.store = group.connect(place)
        life = group.connect(f"{place}/life")
        self.watch = Heartbeat(life, group.rank, group.size, group.patience)
        self.talks = 0  # so far, the same on all ranks
        self._transfers: Counter[tuple[int, int]] = Counter()

    def set(self, key: str, text: str) -> None:
        with self.translate_errors():
            self.store.set(key, text)

    def wait_for(self, key: str, timeout_message: str = "") -> str:
        """What is said under a key; `late`: what is wrong where it is not within the group's wait,
        by default it may take any time."""
        started, pause = time.monotonic(), 0.0
        with self.translate_errors():
            while not self.store.check([key]):
                self.check()
                if timeout_message and time.monotonic() - started > self.group.wait:
                    raise RanksError(timeout_message)
                time.sleep(pause)  # a tenth of what it took so far
                pause = min(max((time.monotonic() - started) / 10, 0.0005), 0.1)
            return str(self.store.get(key).decode())

    def check(self) -> None:
        if (failure := self.watch.failure) is not None:
            raise RanksError(failure.text) if failure.own else OtherRankError(failure)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Errors of torch's as ours: somebody ended, or closed the group."""
        try:
            yield
        except (RuntimeError, ValueError, TypeError) as error:  # what torch raises, as it comes
            self.watch.wait_for_reason()
            self.check()
            raise RanksError(
                "the process group was closed, or a rank ended, while all worked together "
                f"({describe(error).splitlines()[0][:120]})"
            ) from error

    def send(self, data: bytes, to: int) -> None:
        key = self._transfer_key(self.group.rank, to)
        self.set(f"{key}/size", str(len(data)))
        self.wait_for(f"{key}/taken")
        if data:
            with self.translate_errors():
                self.group.send(data, to)

    def receive(self, source: int) -> bytes:
        key = self._transfer_key(source, self.group.rank)
        size = int(self.wait_for(f"{key}/size"))
        self.set(f"{key}/taken", "")
        with self.translate_errors():
            return self.group.receive(size, source) if size else b""

    def _transfer_key(self, source: int, to: int) -> str:
        self._transfers[source, to] += 1
        return f"sends/{source}/{to}/{self._transfers[source, to]}"
