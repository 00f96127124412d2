"""Point-to-point messages between the ranks of a session."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

from qtool.core.errors import RanksError, describe
from qtool.distributed.process_group import Group

PART_SIZE = 4 << 20  # bytes of a value; a TCPStore takes less than 8 MiB


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
        """Set the text under a key, in parts that the store takes; the first one last."""
        data = text.encode()
        starts = range(0, len(data), PART_SIZE) or range(1)
        with self.translate_errors():
            for part, start in reversed(list(enumerate(starts))):
                head = b"" if part else b"%d " % len(starts)
                name = f"{key}/{part}" if part else key
                self.store.set(name, head + data[start : start + PART_SIZE])

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
            count, data = self.store.get(key).split(b" ", 1)
            more = [self.store.get(f"{key}/{part}") for part in range(1, int(count))]
            return b"".join([data, *more]).decode()

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
            if self.group.is_open:
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


# A thread on every rank that sends heartbeats through the group's store, whatever the main thread
# does, and notices ranks that failed or are silent.


PERIOD = 0.5  # seconds between heartbeats
NOTICE_TIMEOUT = 4.0  # seconds that a failed rank waits for the others to notice


@dataclass(frozen=True)
class Failure:
    """Why a session ended.

    Attributes:
        text: the reason, one sentence.
        code: exit code of a command.
        own: this rank failed.
    """

    text: str
    code: int = 2
    own: bool = False


class Heartbeat:
    """Watches the ranks of one session: rank 0 all others, the others rank 0.

    Attributes:
        failure: the first failure of any rank; None while all are well.
    """

    def __init__(self, store: Any, rank: int, size: int, patience: float) -> None:
        """
        Args:
            store: a connection that nothing else uses.
            rank: this rank.
            size: number of ranks.
            patience: seconds without a heartbeat after which a rank is dead.
        """
        self.failure: Failure | None = None
        self._store = store
        self._rank, self._size, self._patience = rank, size, patience
        self._last_beats: dict[int, tuple[bytes, float]] = {}
        self._beats = 0
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="qtool-ranks", daemon=True)

    def start(self) -> None:
        self._store.set(f"beat/{self._rank}", "0")
        self._thread.start()

    def watch(self) -> None:
        """Begin to watch, once all ranks are there."""
        others = range(1, self._size) if self._rank == 0 else (0,)
        self._last_beats = dict.fromkeys(others, (b"", time.monotonic()))

    def wait_for_reason(self) -> None:
        """Wait until the reason of a failure is known, at most as long as a rank is silent before
        it is dead."""
        self._wait_until(lambda: self.failure, self._patience + NOTICE_TIMEOUT)

    def fail(self, failure: Failure) -> Failure:
        """Report a failure of this rank to all.

        Returns:
            The first failure of any rank, once the others noticed or NOTICE_TIMEOUT is over.
        """
        try:
            if self._report(failure):
                self._wait_until(lambda: self._all_others("noticed"), NOTICE_TIMEOUT)
            else:
                self._wait_until(self._has_failed, NOTICE_TIMEOUT)
                self._store.set(f"noticed/{self._rank}", "")
        except RuntimeError:  # the store is gone, too
            pass
        return self.failure or failure

    def leave(self) -> None:
        """Report that this rank is done. Rank 0 waits for all: its process may hold the store."""
        try:
            self._store.set(f"left/{self._rank}", "")
            if self._rank == 0:
                self._wait_until(lambda: self.failure or self._all_others("left"), self._patience)
        except RuntimeError:
            pass  # the store is no longer needed

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    @staticmethod
    def _wait_until(done: Callable[[], Any], limit: float) -> None:
        end = time.monotonic() + limit
        while not done() and time.monotonic() < end:
            time.sleep(0.02)

    def _all_others(self, state: str) -> bool:
        """True if all other ranks set this state."""
        keys = [f"{state}/{r}" for r in range(self._size) if r != self._rank]
        return bool(self._store.check(keys))

    def _has_failed(self) -> bool:
        """True if a rank failed; `failure` then has the reason."""
        if self.failure is None and self._store.check(["failure"]):
            text, code, rank = json.loads(self._store.get("failure"))
            self.failure = Failure(text, code, rank == self._rank)
        return self.failure is not None

    def _report(self, failure: Failure) -> bool:
        """Store a failure, unless another rank has stored one; return whether it is the first."""
        if self._store.add("failures", 1) > 1:
            return False
        self.failure = failure
        self._store.set("failure", json.dumps([failure.text, failure.code, self._rank]))
        return True

    def _run(self) -> None:
        try:
            while not self._stopped.wait(PERIOD):
                self._beat()
        except RuntimeError:  # of torch's store; its text is a C++ stack
            if not self._stopped.is_set():
                text = "the process that holds the group's store is gone"
                self.failure = self.failure or Failure(text, own=True)

    def _beat(self) -> None:
        self._beats += 1
        self._store.set(f"beat/{self._rank}", str(self._beats))
        if self._has_failed():
            self._store.set(f"noticed/{self._rank}", "")
            return
        for rank in filter(self._is_silent, self._last_beats):
            why = f"no sign of life for {self._patience:g} s"
            self._report(Failure(f"rank {rank} of {self._size} is gone: {why}", own=True))

    def _is_silent(self, rank: int) -> bool:
        """Return whether a rank that has not left sends no heartbeats."""
        beat, now = self._store.get(f"beat/{rank}"), time.monotonic()
        last_beat, since = self._last_beats[rank]
        if beat != last_beat:
            self._last_beats[rank] = (beat, now)
            return False
        return now - since >= self._patience and not self._store.check([f"left/{rank}"])
