"""What is printed of a file of blocks is measured on it, as of a model in memory."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

import qtool
from qtool.core.data.calibration_samples import content_hash
from qtool.core.data.sample_roles import Role, roles_of
from qtool.frontends.captured_model import capture_model
from qtool.verification.estimate import ESTIMATE

SAMPLES, CLASSES = 160, 4


def batches() -> list[torch.Tensor]:
    x = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(1))
    return list(x.split(20))


@pytest.fixture(scope="module")
def float_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
    model.append(nn.Linear(64, CLASSES))
    path = tmp_path_factory.mktemp("float") / "float.onnx"
    capture_model(model.eval(), batches()[0]).export_float(path)
    return path


def outputs(path: Path, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def test_the_estimate_is_that_of_plain_onnx_runtime(float_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    file = qtool.quantize_by_blocks(float_file, batches(), path, block=4096)
    assert len(file.blocks) > 1
    estimate = file.verification.fidelity.estimate
    assert estimate is not None
    assert (estimate.kind, estimate.place) == (ESTIMATE, "")
    x = torch.cat(batches())
    names = [content_hash((row,)) for row in x.split(1)]
    roles = roles_of(names, SAMPLES)
    held_out = x[[roles[name] is Role.ESTIMATE for name in names]].numpy()
    assert estimate.samples == len(held_out)
    real, coded = outputs(float_file, held_out), outputs(path, held_out)
    noise, signal = np.square(real - coded).sum(1), np.square(real).sum(1)
    assert estimate.median_db == pytest.approx(np.median(10 * np.log10(signal / noise)), abs=1e-3)
    (agreement,) = estimate.agreements
    kept = 1 - noise.mean() / real.var(0, ddof=1).sum()
    assert (agreement.kind, agreement.value) == ("numbers", pytest.approx(kept, abs=1e-6))


def test_a_file_of_blocks_is_timed_and_judged_as_one_in_memory(
    float_file: Path, tmp_path: Path
) -> None:
    options = qtool.FileOptions(timing=0.05, min_sqnr=90)
    settings = qtool.QuantizeOptions(accuracy="fast")
    by_blocks, in_memory = (
        qtool.quantize_to_file(
            float_file, batches(), tmp_path / f"{m}.onnx", settings, options, memory=m
        )
        for m in (1 << 15, None)
    )
    assert by_blocks.blocks
    for file in (by_blocks, in_memory):
        assert file.speed is not None
        assert file.speed.baseline == "float.onnx"
        assert file.missed["min_sqnr"].endswith("below min_sqnr=90")
    assert by_blocks.title == in_memory.title
    assert by_blocks.float_size_bytes == in_memory.float_size_bytes
    assert by_blocks.missed == in_memory.missed
    rows = [[row for row, _ in file.summary().rows] for file in (by_blocks, in_memory)]
    assert rows[0] == [*rows[1], "blocks"]


def test_a_file_too_large_to_run_has_the_estimate_of_its_blocks(
    float_file: Path, tmp_path: Path
) -> None:
    file = qtool.quantize_by_blocks(
        float_file, batches(), tmp_path / "int8.onnx", block=4096, memory=1
    )
    estimate = file.verification.fidelity.estimate
    assert estimate is not None
    assert estimate.place == "the simulation of the blocks"
    assert not estimate.agreements
