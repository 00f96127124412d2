"""The metadata of a model card, as the library of the hub reads it."""

from math import nan
from typing import Any

import pytest
from torch import nn

from qtool.core.summary import Summary
from qtool.frontends.huggingface.model_card import model_card, sections_of
from qtool.metrics.metric import Metric

hub = pytest.importorskip("huggingface_hub")
SUMMARY = Summary("m", "8-bit weights", (("size", "1 KiB"),))


def metric(name: str, *values: float) -> Metric:
    return Metric(name, True, True, "built in", values, (0.0,) * len(values), (None,) * len(values))


def card(name: str, metrics: dict[str, tuple[Metric, ...]]) -> Any:
    files = {"onnx/a.onnx": SUMMARY, "onnx/b.onnx": SUMMARY}
    text = model_card(name, nn.Identity(), files, (), metrics=metrics, dataset="evaluation data")
    assert sections_of(text).keys() == {"a.onnx", "b.onnx"}
    return hub.ModelCard(text).data


def test_metrics_are_the_model_index() -> None:
    measured = {"onnx/a.onnx": (metric("top-1", 0.9, 0.8), metric("r2", nan, nan))}
    data = card("acme/tiny", {**measured, "onnx/b.onnx": ()})
    assert (data.base_model, data.base_model_relation) == ("acme/tiny", "quantized")
    assert data.model_name == "acme/tiny"
    (result,) = data.eval_results
    assert (result.metric_type, result.metric_name, result.metric_value) == (
        *("accuracy", "top-1"),
        0.8,
    )
    assert (result.task_name, result.dataset_name) == ("a.onnx", "evaluation data")


def test_a_folder_without_a_hub_id_names_no_base_model() -> None:
    data = card("tiny", {})
    assert data.get("base_model") is None
    assert data.get("model-index") is None
    assert {"onnx", "quantized"} <= set(data.tags)
