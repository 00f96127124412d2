"""Point-to-point messages between the ranks of a session."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from qtool.core.errors import RanksError, describe
from qtool.distributed.heartbeat import Failure, Heartbeat
from qtool.distributed.process_group import Group


class OtherRankError(RanksError):
    """Another rank failed and reports the failure itself.

    Attributes:
        code: exit code of a command.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.code = failure.code


class Channel:
    """Sends texts through the group's store, under a prefix of the session, and bytes through its
    backend. Every wait ends as soon as a rank has failed.

    Attributes:
        group: the process group.
        store: its key-value store.
        heartbeat: watches the other ranks.
        n_gathers: number of all-gathers so far, equal on all ranks.
    """

    def __init__(self, group: Group, session_number: int) -> None:
        prefix = f"qtool/{group.name}/{session_number}"
        self.group = group
        self.store = group.connect(prefix)
        own_store = group.connect(f"{prefix}/life")
        self.heartbeat = Heartbeat(own_store, group.rank, group.size, group.patience)
        self.n_gathers = 0
        self._transfers: Counter[tuple[int, int]] = Counter()

    def set(self, key: str, text: str) -> None:
        with self.translate_errors():
            self.store.set(key, text)

    def wait_for(self, key: str, timeout_message: str = "") -> str:
        """Return the text under a key, once a rank has set it.

        Args:
            timeout_message: raised as a RanksError after the group's `wait` seconds; "" waits
                without a limit.
        """
        started, pause = time.monotonic(), 0.0
        with self.translate_errors():
            while not self.store.check([key]):
                self.check()
                if timeout_message and time.monotonic() - started > self.group.wait:
                    raise RanksError(timeout_message)
                time.sleep(pause)
                # a tenth of the time that it took so far
                pause = min(max((time.monotonic() - started) / 10, 0.0005), 0.1)
            return str(self.store.get(key).decode())

    def check(self) -> None:
        """Raise RanksError if a rank has failed."""
        if (failure := self.heartbeat.failure) is not None:
            raise RanksError(failure.text) if failure.own else OtherRankError(failure)

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise RanksError for torch's errors: a rank ended, or the group was closed."""
        try:
            yield
        except (RuntimeError, ValueError, TypeError) as error:  # torch raises any of them
            self.heartbeat.wait_for_reason()
            self.check()
            raise RanksError(
                "the process group was closed, or a rank ended, during a collective call "
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
