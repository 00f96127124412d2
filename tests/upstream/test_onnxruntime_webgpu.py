"""Defects of ONNX Runtime's WebGPU provider (docs/upstream.md): a failure means one is mended."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qtool.backends.onnxruntime.emulation.cpus import WEBGPU
from qtool.backends.onnxruntime.emulation.jobs import Job, read_array, run_jobs, write_array
from qtool.core.sqnr import sqnr
from tests.backends.onnxruntime.emulation.webgpu import attention, needs_webgpu, show_subgroups

pytestmark = [pytest.mark.matrix, needs_webgpu]
TOKENS = 12


def ratios(folder: Path, past: int) -> list[float]:
    """Return the SQNR of attention for each token, on WebGPU against the CPU provider."""
    inputs = attention(folder / "a.onnx", TOKENS, past)
    for i, array in enumerate(inputs):
        write_array(folder, 0, i, array)
    results = []
    for cpu, providers in ((None, ()), (WEBGPU, ("WebGpuExecutionProvider",))):
        outputs = folder / f"outputs-{len(results)}"
        outputs.mkdir()
        job = Job(folder / "a.onnx", folder, outputs, 1, providers=providers)
        run_jobs(cpu, [job], folder / f"job-{len(results)}", 60)
        results.append(read_array(outputs, 0, 0)[0])
    pairs = zip(*results, strict=True)
    return [200.0 if (db := sqnr(one, other)) is None else db for one, other in pairs]


@pytest.mark.parametrize(("past", "right"), [(0, 4), (9, 0)])
def test_attention_needs_subgroups_of_eight(
    past: int, right: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step scores eight keys and loads as many as a subgroup has: with four, the others are
    whatever a shuffle from outside the subgroup gives, and are scored again in the next step."""
    show_subgroups(tmp_path, monkeypatch)
    of_tokens = ratios(tmp_path, past)
    assert all(db > 120 for db in of_tokens[:right])
    assert all(db < 40 for db in of_tokens[right:])


@pytest.mark.parametrize("past", [0, 9])
def test_attention_is_right_without_subgroups(past: int, tmp_path: Path) -> None:
    assert np.min(ratios(tmp_path, past)) > 120
