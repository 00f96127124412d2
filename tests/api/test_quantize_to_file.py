"""One call does what `qtool quantize` does: it judges by goals, and checks where files go."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

import qtool


def test_judges_by_goals(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    data = [torch.randn(32, 8) for _ in range(2)]
    goals = qtool.FileOptions(timing=0, min_sqnr=200, min_coverage=0.5)
    file = qtool.quantize_to_file(model, data, tmp_path / "m.onnx", file=goals)
    assert not file.passed
    assert file.missed["min_coverage"] == ""
    assert file.warnings == (f"{file.missed['min_sqnr']}; the file was written",)
    assert "below min_sqnr=200" in file.warnings[0]


class ClassNumber(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).argmax(1)


def test_what_was_not_measured_meets_no_goal(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, goals = ClassNumber(8, 4).eval(), qtool.FileOptions(timing=0, min_sqnr=-300)
    file = qtool.quantize_to_file(model, [torch.randn(32, 8)], tmp_path / "m.onnx", file=goals)
    assert not file.passed
    assert "no output has an SQNR that could be measured" in file.missed["min_sqnr"]


def test_layouts_of_folders_are_for_folders(tmp_path: Path) -> None:
    with pytest.raises(qtool.OptionError, match="is for a folder of transformers"):
        qtool.quantize_to_file(
            nn.Linear(2, 2), [], tmp_path / "out", file=qtool.FileOptions(layout="genai")
        )


def test_the_float_model_is_written_next_to_the_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(8, 4).eval(), torch.randn(32, 8)
    plain = tmp_path / "float.onnx"
    options = qtool.FileOptions(timing=0, float_file=plain)
    file = qtool.quantize_to_file(model, [x], tmp_path / "m.onnx", file=options)
    (outputs,) = ort.InferenceSession(str(plain)).run(None, {"input": x.numpy()})
    assert np.allclose(outputs, model(x).detach(), atol=1e-6)
    assert qtool.gate(file.path, plain, [x]).metric is not None
    same = qtool.FileOptions(float_file=file.path)
    with pytest.raises(qtool.FileError, match="is an input; name another"):
        qtool.quantize_to_file(model, [x], file.path, file=same)


def test_a_failed_evaluation_says_that_the_file_is_whole(tmp_path: Path) -> None:
    model, data, path = nn.Linear(8, 4).eval(), [torch.randn(32, 8)], tmp_path / "m.onnx"
    quick = qtool.QuantizeOptions(accuracy="fast"), qtool.FileOptions(timing=0)
    wrong = qtool.EvaluationData([torch.full((32, 8), torch.nan)])
    said = "m.onnx is written and verified, its evaluation failed: .*batch 0, .* holds NaN in"
    with pytest.raises(qtool.DataError, match=said) as caught:
        qtool.quantize_to_file(model, data, path, *quick, evaluation=wrong)
    assert caught.value.remedies
    assert qtool.verify(path).passed


def test_sizes_are_relative_to_a_float_file_of_the_format(tmp_path: Path) -> None:
    model, data, path = nn.Linear(8, 4).eval(), [torch.randn(32, 8)], tmp_path / "m.tflite"
    how = qtool.QuantizeOptions(target="tflite-micro", accuracy="fast")
    file = qtool.quantize_to_file(model, data, path, how, evaluation=qtool.EvaluationData(data))
    plain = qtool.capture_model(model, data[0]).export_float(tmp_path / "float.tflite")
    assert file.float_size_bytes == Path(plain or tmp_path / "float.tflite").stat().st_size
    assert file.accuracy is not None
