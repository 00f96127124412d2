"""Threads convert at once, and leave the process as it was."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import sympy  # noqa: F401 - adds a filter of warnings when it is first imported
import torch
from torch import nn

import qtool
from qtool.core import process_lock
from qtool.core.process_lock import _promote_survivors, relaxed_gc, silence_logging, trim_memory


class Circle:
    def __init__(self) -> None:
        self.own = self


def state() -> tuple[Any, ...]:
    return (
        sys.stderr,
        list(warnings.filters),
        [logging.getLogger(n).level for n in ("torch", "torch.onnx", "onnxscript", "onnx_ir")],
        torch.backends.mkldnn.enabled,
        torch.backends.mha.get_fastpath_enabled(),
        nn.Module.__call__,
        nn.Module.__getattr__,
        gc.get_threshold(),
    )


def test_two_conversions_at_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Conv2d(3, c, 3), nn.ReLU(), nn.Conv2d(c, 4, 3)) for c in (4, 5, 6)]
    data = [torch.randn(4, 3, 8, 8) for _ in range(3)]
    before, failed = state(), []

    def convert(i: int) -> None:
        try:
            for k in range(2):
                qtool.quantize(nets[i].eval(), data).export(tmp_path / f"{i}.{k}.onnx")
        except BaseException as error:  # noqa: BLE001  # said by the test
            failed.append(error)

    threads = [threading.Thread(target=convert, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert state() == before
    for i in range(3):
        alone = tmp_path / f"{i}.alone.onnx"
        qtool.quantize(nets[i], data).export(alone)
        others = {(tmp_path / f"{i}.{k}.onnx").read_bytes() for k in range(2)}
        assert others == {alone.read_bytes()}


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_everything_is_put_back_after_a_failure(error: type[BaseException]) -> None:
    before = state()

    def fail() -> None:
        with silence_logging():
            assert state() != before
            raise error

    with pytest.raises(error):
        fail()
    assert state() == before


def test_what_goes_in_circles_is_given_back_also_where_the_system_takes_no_hint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for trim in (None, lambda _: 1):
        monkeypatch.setattr("qtool.core.process_lock._MALLOC_TRIM", trim)
        gone = weakref.ref(Circle())
        trim_memory()
        assert gone() is None


def test_garbage_is_looked_for_rarely_and_never_where_a_person_wants_none() -> None:
    before = gc.get_threshold()
    try:
        for young, meanwhile in ((700, 100_000), (200_000, 200_000), (0, 0)):
            gc.set_threshold(young, 5, 6)
            with relaxed_gc():
                assert gc.get_threshold() == (meanwhile, 5, 6)
            assert gc.get_threshold() == (young, 5, 6)
    finally:
        gc.set_threshold(*before)


def test_what_was_made_is_old_afterwards_and_what_is_frozen_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_lock, "_promote_survivors", _promote_survivors)
    gone: list[weakref.ref[Circle]] = []
    gc.unfreeze()  # what the tests exclude
    for frozen in (False, True):
        before = Circle()
        if frozen:
            gc.freeze()
        try:
            with relaxed_gc():
                gone.append(weakref.ref(Circle()))
            assert gone.pop()() is None
            assert frozen or gc.get_count()[2] == 0  # no walk through all that is comes next
            assert any(o is before for o in gc.get_objects()) != frozen
        finally:
            gc.unfreeze()
