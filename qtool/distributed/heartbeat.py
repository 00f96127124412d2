"""A thread on every rank that shows it is alive, and sees when another one has failed or is gone.

Signs of life go through the group's store, whatever the main threads are at. On the same machine a
process that ended is known at once by a lock that went with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

from qtool.core.atomic import is_abandoned

PERIOD = 0.5
REMOVED_TIMEOUT = 5.0  # seconds without a sign of life that tell enough where the lock is gone, too
NOTICE_TIMEOUT = 4.0  # seconds in which the others take notice, before who failed goes


@dataclass(frozen=True)
class Failure:
    """Why all end. code: the exit code of a command; own: whether it is this rank's."""

    text: str
    code: int = 2
    own: bool = False


class Heartbeat:
    """Watches the ranks of one session; rank 0 all others, which watch rank 0. `store` is a
    connection of its own."""

    def __init__(self, store: Any, rank: int, size: int, patience: float) -> None:
        self.failure: Failure | None = None
        self._store = store
        self._rank, self._size, self._patience = rank, size, patience
        self._lives: dict[int, Path] = {}
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._beats = 0
        self._over = Event()
        self._thread = Thread(target=self._run, name="qtool-ranks", daemon=True)

    def start(self) -> None:
        self._store.set(f"beat/{self._rank}", "0")
        self._thread.start()

    def watch(self, lives: dict[int, Path]) -> None:
        """All are here. lives: folders on this machine, locked as long as their ranks live."""
        others = range(1, self._size) if self._rank == 0 else (0,)
        now = time.monotonic()
        self._lives = {r: at for r, at in lives.items() if at.exists()}  # not in other containers
        self._seen = dict.fromkeys(others, (b"", now))

    def wait_for_reason(self) -> None:
        """Waits a moment for the reason of what went wrong, if it has not come yet."""
        self._wait_until(lambda: self.failure, NOTICE_TIMEOUT)

    def fail(self, failure: Failure) -> Failure:
        """Ends all. Returns the failure that counts, the first one of any rank, when the others
        took notice, or after a while."""
        try:
            if self._store.add("failures", 1) > 1:
                self._wait_until(self._has_failed, NOTICE_TIMEOUT)
            else:
                self.failure = failure
                self._store.set("failure", json.dumps([failure.text, failure.code, self._rank]))
                self._wait_until(lambda: self._all("noticed"), NOTICE_TIMEOUT)
        except RuntimeError:  # the store is gone, too
            pass
        return self.failure or failure

    def leave(self) -> None:
        """This rank is done. Rank 0 waits for all, since others may need what its process holds."""
        try:
            self._store.set(f"left/{self._rank}", "")
            if self._rank == 0:
                self._wait_until(lambda: self.failure or self._all("left"), self._patience)
        except RuntimeError:
            pass  # nobody needs the store any more

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    @staticmethod
    def _wait_until(done: Callable[[], Any], limit: float) -> None:
        end = time.monotonic() + limit
        while not done() and time.monotonic() < end:
            time.sleep(0.02)

    def _all(self, what: str) -> bool:
        """Whether all others have said so."""
        return bool(
            self._store.check([f"{what}/{r}" for r in range(self._size) if r != self._rank])
        )

    def _has_failed(self) -> bool:
        """Whether a rank has failed; why is in `failure` then."""
        if self.failure is None and self._store.check(["failure"]):
            text, code, rank = json.loads(self._store.get("failure"))
            self.failure = Failure(text, code, rank == self._rank)
        return self.failure is not None

    def _run(self) -> None:
        try:
            while not self._over.wait(PERIOD):
                self._beat()
        except RuntimeError:  # of torch's store; its text is a C++ stack
            if not self._over.is_set():
                text = "the process that holds the group's store is gone"
                self.failure = self.failure or Failure(text, own=True)

    def _beat(self) -> None:
        self._beats += 1
        self._store.set(f"beat/{self._rank}", str(self._beats))
        if self._has_failed():
            self._store.set(f"noticed/{self._rank}", "")
            return
        for rank in self._dead_ranks(list(self._seen)):
            if self._store.add("failures", 1) == 1:
                text = f"rank {rank} of {self._size} is gone: {self._reason(rank)}"
                self._store.set("failure", json.dumps([text, 2, self._rank]))

    def _dead_ranks(self, others: Collection[int]) -> list[int]:
        return [r for r in others if not self._is_alive(r)]

    def _is_alive(self, rank: int) -> bool:
        if self._store.check([f"left/{rank}"]):
            return True
        if self._has_exited(rank):
            return bool(self._store.check([f"left/{rank}"]))  # it may have left meanwhile
        beat, now = self._store.get(f"beat/{rank}"), time.monotonic()
        before, since = self._seen[rank]
        if beat != before:
            self._seen[rank] = (beat, now)
            return True
        return now - since < (
            min(REMOVED_TIMEOUT, self._patience)
            if self._folder_is_removed(rank)
            else self._patience
        )

    def _has_exited(self, rank: int) -> bool:
        return rank in self._lives and is_abandoned(self._lives[rank])

    def _folder_is_removed(self, rank: int) -> bool:
        """Whether somebody removed the folder: as a rule because its process had ended."""
        return rank in self._lives and not self._lives[rank].exists()

    def _reason(self, rank: int) -> str:
        if self._has_exited(rank) or self._folder_is_removed(rank):
            return "its process ended"
        return f"no sign of life for {self._patience:g} s"
