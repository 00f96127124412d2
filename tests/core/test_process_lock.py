"""Threads convert at once, and leave the process as it was."""

import gc
import logging
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import sympy  # noqa: F401 - adds a filter of warnings when it is first imported
import torch
from torch import nn

import qtool
from qtool.core.process_lock import silence_logging


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
    nets = [nn.Sequential(nn.Conv2d(3, c, 3), nn.ReLU(), nn.Conv2d(c, 4, 3)) for c in (4, 5)]
    data = [torch.randn(4, 3, 8, 8) for _ in range(3)]
    before, failed = state(), []

    def convert(i: int) -> None:
        try:
            for k in range(2):
                qtool.quantize(nets[i].eval(), data, accuracy="fast").export(
                    tmp_path / f"{i}.{k}.onnx"
                )
        except BaseException as error:  # noqa: BLE001  # said by the test
            failed.append(error)

    threads = [threading.Thread(target=convert, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert state() == before
    for i in range(2):
        alone = tmp_path / f"{i}.alone.onnx"
        qtool.quantize(nets[i], data, accuracy="fast").export(alone)
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
