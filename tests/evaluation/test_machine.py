"""Where a measurement was made."""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime
import pytest

from qtool.evaluation import machine as module
from qtool.evaluation.machine import this_machine


def test_it_is_this_machine() -> None:
    found = this_machine()
    assert 1 <= found.cores <= (os.cpu_count() or 1)
    assert found.memory_gib > 0
    assert found.versions["onnxruntime"] == onnxruntime.__version__
    assert found.cpu
    assert set(found.features) <= set(module.FEATURES)


CPUINFO = "model name\t: A Processor\nflags\t\t: fpu avx2 avx_vnni\n\nmodel name\t: Another\n"


def test_the_first_processor_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(CPUINFO)
    monkeypatch.setattr(module, "Path", lambda _: file)
    found = this_machine()
    assert (found.cpu, found.features) == ("A Processor", ("avx2", "avx_vnni"))


def test_what_the_system_does_not_tell_is_left_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Path", lambda _: tmp_path / "missing")
    monkeypatch.delattr(os, "sysconf")
    found = this_machine()
    assert (found.features, found.memory_gib) == ((), 0.0)
