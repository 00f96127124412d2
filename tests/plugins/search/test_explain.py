"""Layers that are named for a changed answer bring it back, in the simulation and in a file."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import qtool
from qtool.backends.onnxruntime.session import run, session
from qtool.plugins.search.explanation import Flip
from tests.evaluation.language_models import DYNAMIC, Tagger, texts
from tests.plugins.search.nets import ladder


def test_what_is_named_mends(tmp_path: Path) -> None:
    net, seen, asked = ladder()
    with torch.no_grad():
        net.head.weight /= 1000  # answers near to each other
        net.head.bias /= 1000
    file, repaired = tmp_path / "int8.onnx", tmp_path / "repaired.onnx"
    rounded = {"accuracy": "balanced"}
    qtool.quantize(net, seen, **rounded).export(file)
    found = qtool.explain(file, net, asked)
    assert found.changed
    assert all(f.fixed for f in found.flips)
    samples = torch.cat(asked)
    for flip in found.flips[:3]:
        one = qtool.explain(file, net, asked, samples=[flip.index], repaired_file=repaired)
        assert one.flips == (flip,)
        (scores,) = run(session(repaired), [samples[flip.index : flip.index + 1].numpy()])
        assert int(scores[0].argmax()) == flip.expected
    same = next(i for i in range(256) if i not in {f.index for f in found.flips})
    with pytest.raises(qtool.DataError, match=f"the prediction for sample {same} did not change"):
        qtool.explain(file, net, asked, samples=[same])
    with pytest.raises(qtool.DataError, match="there is no sample 256; the data has 256"):
        qtool.explain(file, net, asked, samples=[256])


class Nested(nn.Module):
    """Its input is in a list, as the keys and values of a cache."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return self.net(parts[0])


class OneSize(Nested):
    """It takes batches of one size alone."""

    def __init__(self, net: nn.Module, size: int) -> None:
        super().__init__(net)
        self.size = size

    def forward(self, parts: list[torch.Tensor]) -> torch.Tensor:
        return self.net(parts[0].reshape(self.size, *parts[0].shape[1:]))


@pytest.mark.parametrize("one_size", [False, True])
def test_a_sample_is_cut_out_of_lists_and_of_batches_of_one_size(
    one_size: bool, tmp_path: Path
) -> None:
    net, seen, asked = ladder()
    with torch.no_grad():
        net.head.weight /= 1000
        net.head.bias /= 1000
    data = [([x],) for x in asked]
    calibration = [([torch.cat(seen)],)]
    model = OneSize(net, len(asked[0])).eval() if one_size else Nested(net).eval()
    file = tmp_path / "int8.onnx"
    quantized = qtool.quantize(model, calibration, accuracy="fast")
    quantized.export(file)
    flips = qtool.explain(file, model, data).flips
    assert flips
    for flip in flips:
        batch, row = divmod(flip.index, len(asked[0]))
        assert row  # not the first one, which every sample would be if the batch were not cut
        with torch.no_grad():
            scores = quantized(*data[batch])[row]
        margin = float(scores[flip.expected] - scores[flip.predicted])
        assert flip.margins[1] == pytest.approx(margin, rel=1e-2)


def test_a_flip_names_sample_and_classes() -> None:
    flip = Flip(96, 3, 5, (0.5, -0.25), ("conv1",), True)
    assert str(flip) == (
        "sample 96: float predicts 3 (margin 0.5), quantized predicts 5 (margin 0.25); "
        "keeping conv1 in float fixes it"
    )
    named = replace(flip, names=("cat/96.png", "cat", "dog"), fixed=False)
    assert str(named).startswith(
        "cat/96.png (sample 96): float predicts cat (margin 0.5), quantized"
    )
    assert str(named).endswith("keeping conv1 in float does not fix it in the runtime")


def test_a_text_counts_by_its_changed_tokens(tmp_path: Path) -> None:
    model, data, file = Tagger(causal=True).eval(), texts((4, 3)), tmp_path / "int4.onnx"
    quantized = qtool.quantize(
        model, data, mode="weight-only-int4", accuracy="fast", dynamic=DYNAMIC
    )
    quantized.export(file)
    explanation = qtool.explain(file, model, data, most=1, dynamic=DYNAMIC)
    tokens = changed = 0
    for batch in data:
        (logits,) = run(session(file), [t.numpy() for t in batch.values()])
        with torch.no_grad():
            same = model(**batch)["logits"].argmax(2) == torch.from_numpy(logits).argmax(2)
        tokens += int(batch["attention_mask"].sum())
        changed += int((~same & (batch["attention_mask"] == 1)).sum())
    assert (explanation.tokens, explanation.changed_tokens) == (tokens, changed) == (57, changed)
    assert 0 < explanation.changed <= 7
    assert f"{changed} of 57 next tokens changed" in str(explanation.summary())
    assert f"in {explanation.changed} of 7 texts" in str(explanation.summary())
