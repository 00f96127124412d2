"""The samples that a conversion in memory holds out are held out block by block, too."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

import qtool
from qtool.blockwise.checkpoint import Checkpoint
from qtool.blockwise.stored_data import StoredBatch, store_data
from qtool.core.data import Batch
from qtool.core.data.calibration_samples import CalibrationSamples
from qtool.distributed import Ranks
from qtool.frontends.data.load_data import load_data
from qtool.frontends.load_model import load_model

EXAMPLE = Path(__file__).parents[2] / "examples/language_model"
TASK = "text-generation"


def stored(
    model: nn.Module, data: Iterable[torch.Tensor], folder: Path, keep: int
) -> tuple[list[StoredBatch], list[torch.Tensor]]:
    """The batches of some data, and their tensors."""
    data = list(data)
    graph = qtool.capture_model(model.eval(), data[0]).graph
    checkpoint = Checkpoint(folder, {}, Ranks())
    found = store_data(
        graph, (graph.bind(Batch((x,))) for x in data), checkpoint, keep, lambda _, __: ["x"]
    )
    return found, [checkpoint.activations(0).load(batch.number)[0]["x"] for batch in found]


class Twice(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Joined(nn.Module):
    """Its batches cannot be cut into samples: their number is fixed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(12) * 2


def drawn(count: int = 6, size: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return list(torch.randn(count, size, 3))


def test_the_samples_that_memory_holds_out(tmp_path: Path) -> None:
    data, kept = drawn(), CalibrationSamples(12)
    for batch in data:
        kept.update([batch], split=True)
    batches, tensors = stored(Twice(), data, tmp_path, keep=12)
    pairs = list(zip(batches, tensors, strict=True))
    held = torch.cat([x for batch, x in pairs if batch.measured])
    assert sorted(held.tolist()) == sorted(
        torch.cat([t for (t,) in kept.batches(32, holdout=True)]).tolist()
    )
    assert len(held) == 4
    fitted = torch.cat([x for batch, x in pairs if batch.fitted])
    assert sorted([*held.tolist(), *fitted.tolist()]) == sorted(torch.cat(data).tolist())
    assert [batch.number for batch in batches] == list(range(len(batches)))
    assert all(batch.size == len(x) and batch.fitted is not batch.measured for batch, x in pairs)


def test_nothing_is_held_out_where_nothing_learns(tmp_path: Path) -> None:
    batches, _ = stored(Twice(), drawn(), tmp_path, keep=0)
    assert batches == [StoredBatch(i, 4) for i in range(6)]


def test_batches_that_cannot_be_cut_are_held_out_as_a_whole(tmp_path: Path) -> None:
    batches, _ = stored(Joined(), drawn(), tmp_path, keep=9)
    assert [batch.size for batch in batches] == [4] * 6
    assert sum(batch.measured for batch in batches) == 2


@pytest.fixture(scope="module")
def texts() -> Any:
    """The language model of the examples, 64 texts to calibrate it, and new ones."""
    pytest.importorskip("transformers")
    model = load_model(EXAMPLE / "model", task=TASK)

    def read(name: str, samples: int) -> Any:
        how: dict[str, Any] = {
            "model": model,
            "folder": EXAMPLE / "model",
            "max_length": 64,
            "samples": samples,
        }
        return load_data(EXAMPLE / name, 32, **how)

    return model, read("calibration.txt", 64), read("evaluation.txt", 32)


def sqnr(model: nn.Module, run: Any, data: Iterable[Any]) -> float:
    noise = power = 0.0
    with torch.no_grad():
        for batch in data:
            exact = model(**batch).logits.double().numpy()
            noise += float(np.square(run(batch) - exact).sum())
            power += float(np.square(exact).sum())
    return float(10 * np.log10(power / noise))


@pytest.mark.matrix
def test_the_estimate_is_that_of_memory_and_of_new_texts(texts: Any, tmp_path: Path) -> None:
    model, data, new = texts
    how: dict[str, Any] = {
        "mode": "weight-only-int4",
        "recipe": [{"op": "linear", "weight_observer": "minmax"}],
        "recover": ["gptq"],
        "dynamic": data.dynamic,
    }
    memory = qtool.quantize(model, data, **how)
    ((_, in_memory),) = memory.fidelity.holdout
    blocks = qtool.quantize_by_blocks(
        EXAMPLE / "model", data, tmp_path / "net.onnx", task=TASK, **how
    )
    assert "(21 held-out samples)" in memory.fidelity.row()[1]
    assert "(21 held-out samples)" in str(blocks)
    session = ort.InferenceSession(tmp_path / "net.onnx")

    def run(batch: Any) -> Any:
        return session.run(["logits"], {name: t.numpy() for name, t in batch.items()})[0]

    estimate = blocks.sqnr["logits"]
    assert estimate is not None
    assert in_memory is not None
    assert abs(estimate - in_memory) < 0.5
    assert abs(estimate - sqnr(model, run, new)) < 0.5
    assert sqnr(model, run, data) > estimate + 0.5  # two thirds of these texts are fitted
