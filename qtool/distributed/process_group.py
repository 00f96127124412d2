"""The process group of a call: torch's default one if it is open, or that of `use_process_group`.

Where torch is not installed there is one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from qtool.core.errors import RanksError
from qtool.core.remedies import Setup
from qtool.core.torch_package import has_torch

if has_torch():
    import torch
    from torch import distributed as dist

WAIT = 600.0  # seconds for all ranks to make the same call
PATIENCE = 50.0  # seconds without a heartbeat after which a rank is dead


@dataclass(frozen=True)
class _Settings:
    """The arguments of the innermost `use_process_group`; group `...`: torch's, if open."""

    group: Any = ...
    wait: float = WAIT
    patience: float = PATIENCE


_SETTINGS: ContextVar[_Settings] = ContextVar("settings", default=_Settings())  # noqa: B039  # frozen


@dataclass(frozen=True)
class Group:
    """A process group, as one of its ranks.

    Attributes:
        handle: torch's process group.
        store: key-value store of the whole group, for texts of a few bytes.
        rank: this rank.
        size: number of ranks.
        wait: seconds for the others to make the same call.
        patience: seconds without a heartbeat after which a rank is dead.
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

    @property
    def is_open(self) -> bool:
        """Whether this process has not closed it."""
        return _is_open()

    def connect(self, prefix: str) -> Any:
        """Return the store under a prefix, over a connection of its own."""
        from torch.distributed.distributed_c10d import PrefixStore  # torch may be built without

        return PrefixStore(prefix, self.store.clone())

    def send(self, data: bytes, to: int) -> None:
        """Send to rank `to`; return once it has received."""
        dist.send(self._tensor(data), dist.get_global_rank(self.handle, to), self.handle)

    def receive(self, size: int, source: int) -> bytes:
        data = self._empty(size)
        dist.recv(data, dist.get_global_rank(self.handle, source), self.handle)
        return data.cpu().numpy().tobytes()

    def broadcast(self, data: bytes | None, size: int, source: int) -> bytes:
        """Return the `size` bytes of rank `source`; a call of all ranks, None on the others."""
        tensor = self._empty(size) if data is None else self._tensor(data)
        dist.broadcast(tensor, dist.get_global_rank(self.handle, source), self.handle)
        return tensor.cpu().numpy().tobytes() if data is None else data

    def _tensor(self, data: bytes) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(self._device)

    def _empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    @property
    def _device(self) -> torch.device:
        """The device that the backend sends from: the CPU wherever it can."""
        backends = str(dist.get_backend_config(self.handle))
        return torch.device("cpu" if "cpu:" in backends or "nccl" not in backends else "cuda")


@contextmanager
def use_process_group(
    group: Any = ..., *, wait: float = WAIT, patience: float = PATIENCE
) -> Iterator[None]:
    """Run the calls in this context on all ranks of a process group.

    Outside of it calls use torch's default group, if that is open.

    Args:
        group: a group of torch.distributed; None: this process alone.
        wait: seconds in which all ranks have to make the same call.
        patience: seconds without a heartbeat after which a rank is dead.

    Raises:
        RanksError: by calls in the context: ranks differ in model, options or versions, or one
            fails or dies.
    """
    token = _SETTINGS.set(_Settings(group, wait, patience))
    try:
        yield
    finally:
        _SETTINGS.reset(token)


def find_group() -> Group | None:
    """Return the group of the current context; None if this process works alone.

    Raises:
        RanksError: the group of `use_process_group` is closed, or this process is not in it.
    """
    settings = _SETTINGS.get()
    if settings.group is None or (settings.group is ... and not _is_open()):
        return None
    try:
        handle = dist.group.WORLD if settings.group is ... else settings.group
        rank, size = dist.get_rank(handle), dist.get_world_size(handle)
        if rank < 0:
            raise RanksError("this process is not a member of the process group")
        if size == 1:
            return None
        store = dist.distributed_c10d._get_default_store()
    except (ValueError, RuntimeError, AttributeError, TypeError) as error:
        raise RanksError(
            f"the process group is not open ({error})",
            Setup("call init_process_group first, and destroy_process_group last"),
        ) from error
    return Group(handle, store, rank, size, settings.wait, settings.patience)


def _is_open() -> bool:
    return has_torch() and dist.is_available() and dist.is_initialized()
