"""What is taken for a causal language model, and the losses of its next tokens."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import qtool
from qtool.backends.onnxruntime.session import OnnxSession
from qtool.evaluation.language_model import find_language_model
from tests.evaluation.language_models import DYNAMIC, Tagger, texts, write_tagger


def arrays(batch: dict[str, torch.Tensor]) -> list[np.ndarray]:
    return [t.numpy() for t in batch.values()]


def test_a_causal_model_has_its_tokens_and_logits(tmp_path: Path) -> None:
    model = OnnxSession(write_tagger(tmp_path / "a.onnx"))
    place = find_language_model(model, arrays(texts()[0]))
    assert (place.ids, place.mask, place.logits) == (0, 1, 0)
    assert (place.positions, place.cache) == (None, ())


def test_tokens_that_see_later_ones_are_not_predicted(tmp_path: Path) -> None:
    model = OnnxSession(write_tagger(tmp_path / "a.onnx", causal=False))
    assert find_language_model(model, arrays(texts()[0])) is None


def test_a_single_token_has_no_next_one(tmp_path: Path) -> None:
    model = OnnxSession(write_tagger(tmp_path / "a.onnx"))
    assert find_language_model(model, [a[:, :1] for a in arrays(texts()[0])]) is None


def test_classes_of_tokens_are_no_vocabulary(tmp_path: Path) -> None:
    tagger = Tagger(causal=True)
    tagger.head = nn.Linear(16, 3)
    file = qtool.capture_model(tagger.eval(), texts()[0], DYNAMIC).export_float(tmp_path / "a.onnx")
    assert find_language_model(OnnxSession(file), arrays(texts()[0])) is None


def test_features_of_tokens_are_no_logits(tmp_path: Path) -> None:
    model = onnx.load(write_tagger(tmp_path / "a.onnx"))
    node = next(n for n in model.graph.node if model.graph.output[0].name in n.output)
    model.graph.output[0].name = node.output[0] = "last_hidden_state"
    onnx.save(model, tmp_path / "b.onnx")
    assert find_language_model(OnnxSession(tmp_path / "b.onnx"), arrays(texts()[0])) is None


def test_losses_are_those_of_torch_without_padding(tmp_path: Path) -> None:
    model, inputs = OnnxSession(write_tagger(tmp_path / "a.onnx")), arrays(texts()[0])
    place = find_language_model(model, inputs)
    assert place is not None
    (logits,) = model.run(inputs)
    losses = place.losses(inputs, logits)
    ids, mask = (torch.from_numpy(a) for a in inputs)
    expected = nn.functional.cross_entropy(
        torch.from_numpy(logits)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
    ).reshape(len(ids), -1)
    assert losses == pytest.approx((expected * mask[:, 1:]).numpy(), abs=1e-5)
    assert not losses[0, 5:].any()
    assert place.predicted(inputs).sum(1).tolist() == [5, 8, 8]
