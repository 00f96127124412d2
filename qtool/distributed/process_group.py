"""The process group that a call works in: torch's default one where it is open, or one named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist

from qtool.core.errors import RanksError

WAIT, PATIENCE = 600.0, 60.0


@dataclass(frozen=True)
class _Settings:
    """What `within` was given last. group: `...` for torch's default one, if it is open."""

    group: Any = ...
    wait: float = WAIT
    patience: float = PATIENCE


_SETTINGS: ContextVar[_Settings] = ContextVar("asked", default=_Settings())  # noqa: B039  # frozen


@dataclass(frozen=True)
class Group:
    """A process group, seen from one of its ranks.

    store: of the whole group; texts of a few bytes. wait: seconds for the others to make the same
    call. patience: seconds without a sign of life from one of them.
    """

    handle: Any
    store: Any
    rank: int
    size: int
    wait: float
    patience: float

    @property
    def name(self) -> str:
        return str(self.handle.group_name)

    def connect(self, place: str) -> Any:
        """The store under a prefix, over a connection that nobody else waits on."""
        from torch.distributed.distributed_c10d import PrefixStore  # torch may be built without

        return PrefixStore(place, self.store.clone())

    def send(self, data: bytes, to: int) -> None:
        """Returns once rank `to` has taken them in `receive`."""
        dist.send(self._tensor(data), dist.get_global_rank(self.handle, to), self.handle)

    def receive(self, size: int, source: int) -> bytes:
        taken = self._empty(size)
        dist.recv(taken, dist.get_global_rank(self.handle, source), self.handle)
        return taken.cpu().numpy().tobytes()

    def broadcast(self, data: bytes | None, size: int, source: int) -> bytes:
        """Called by all at once; `data` is what `source` gives."""
        held = self._empty(size) if data is None else self._tensor(data)
        dist.broadcast(held, dist.get_global_rank(self.handle, source), self.handle)
        return held.cpu().numpy().tobytes() if data is None else data

    def _tensor(self, data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)

    def _empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    @property
    def _device(self) -> torch.device:
        """Where the backend moves memory: bytes go over the CPU wherever it can."""
        backends = str(dist.get_backend_config(self.handle))
        return torch.device("cpu" if "cpu:" in backends or "nccl" not in backends else "cuda")


@contextmanager
def within(group: Any = ..., *, wait: float = WAIT, patience: float = PATIENCE) -> Iterator[None]:
    """Calls in this context work together with the ranks of a process group.

    Without it they do so in torch's default group, where that is open.

    Args:
        group: of torch.distributed; None: every process works alone.
        wait: seconds in which all ranks have to make the same call.
        patience: seconds without a sign of life, after which a rank counts as dead. A process that
            ends on the same machine is noticed at once.

    Raises:
        RanksError: by the calls in it, where ranks do not fit each other, or one fails or ends.
    """
    token = _SETTINGS.set(_Settings(group, wait, patience))
    try:
        yield
    finally:
        _SETTINGS.reset(token)


def find_group() -> Group | None:
    """The group to work in; None for a process alone.

    Raises:
        RanksError: a group was named that is closed, or that this process is not in.
    """
    asked = _SETTINGS.get()
    if asked.group is None or (asked.group is ... and not _is_open()):
        return None
    try:
        handle = dist.group.WORLD if asked.group is ... else asked.group
        rank, size = dist.get_rank(handle), dist.get_world_size(handle)
        if rank < 0:
            raise RanksError("this process is not in the process group that was given")
        if size == 1:
            return None
        store = dist.distributed_c10d._get_default_store()
    except (ValueError, RuntimeError, AttributeError, TypeError) as error:
        raise RanksError(
            f"the process group that was given is not open ({error}); call init_process_group "
            "before, and destroy_process_group after all work"
        ) from error
    return Group(handle, store, rank, size, asked.wait, asked.patience)


def _is_open() -> bool:
    return dist.is_available() and dist.is_initialized()
