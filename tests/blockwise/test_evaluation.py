"""The accuracy of a file of blocks on data: that of plain ONNX Runtime, next to its float model."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

import qtool
from tests.blockwise.test_file_measurement import CLASSES, batches, float_file, outputs

__all__ = ["float_file"]

NEW = 60
QUICK = qtool.FileOptions(timing=0)


def new_samples() -> torch.Tensor:
    return torch.randn(NEW, 16, generator=torch.Generator().manual_seed(5))


def labels(float_file: Path) -> np.ndarray:
    """Most of what the float model answers, and some of another class."""
    own = outputs(float_file, new_samples().numpy()).argmax(1)
    return np.where(np.arange(NEW) % 5 == 0, (own + 1) % CLASSES, own)


def evaluation(float_file: Path) -> qtool.EvaluationData:
    return qtool.EvaluationData(list(new_samples().split(20)), labels(float_file))


def converted(float_file: Path, path: Path, memory: int | None, **options: Any) -> Any:
    data = evaluation(float_file)
    how = qtool.QuantizeOptions(accuracy="fast")
    given = (float_file, batches(), path, how, QUICK)
    return qtool.quantize_to_file(*given, **{"evaluation": data, "memory": memory, **options})


def test_the_metrics_are_those_of_plain_onnx_runtime(float_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    file = converted(float_file, path, 1 << 15)
    assert file.blocks
    x, expected = new_samples().numpy(), labels(float_file)
    answers = [outputs(each, x).argmax(1) for each in (float_file, path)]
    (metric,) = file.accuracy.metrics
    assert metric.name == "top-1"
    assert metric.values == tuple((each == expected).mean() for each in answers)
    assert file.accuracy.models[1].agreement.value == (answers[0] == answers[1]).mean()
    assert (file.unmeasured, file.data_kind) == ("", "evaluation")


def test_a_float_model_that_does_not_fit_next_to_the_file_is_said(
    float_file: Path, tmp_path: Path
) -> None:
    """The file then has its own metrics; a larger one has none."""
    path = tmp_path / "alone.onnx"
    how: dict[str, Any] = {"accuracy": "fast", "evaluation": evaluation(float_file)}
    whole = qtool.quantize_by_blocks(float_file, batches(), tmp_path / "both.onnx", **how)
    how["memory"] = 2 * whole.size_bytes + 1
    file = qtool.quantize_by_blocks(float_file, batches(), path, **how)
    assert file.accuracy is not None
    (metric,) = file.accuracy.metrics
    answers = outputs(path, new_samples().numpy()).argmax(1)
    assert metric.values == ((answers == labels(float_file)).mean(),)
    assert len(file.accuracy.models) == 1
    rows = dict(file.summary().rows)
    assert rows["top-1"] == metric.text(metric.values[0])
    assert rows["float accuracy"].startswith(
        "not measured: the float model next to the file would take"
    )
    assert "agreement" not in rows
    how["memory"] = 1
    file = qtool.quantize_by_blocks(float_file, batches(), tmp_path / "none.onnx", **how)
    assert file.accuracy is None
    assert dict(file.summary().rows)["accuracy"].startswith("not measured: the file would take")
