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
from qtool.core.data.sample_roles import Role
from qtool.distributed import Ranks
from qtool.frontends.data.load_data import load_data
from qtool.frontends.load_model import load_model

EXAMPLE = Path(__file__).parents[2] / "examples/language_model"
TASK = "text-generation"


def stored(
    model: nn.Module, data: Iterable[torch.Tensor], folder: Path
) -> tuple[list[StoredBatch], list[torch.Tensor]]:
    """The batches of some data, and their tensors."""
    data = list(data)
    graph = qtool.capture_model(model.eval(), data[0]).graph
    checkpoint = Checkpoint(folder, {}, Ranks())
    found = store_data(
        graph, (graph.bind(Batch((x,))) for x in data), checkpoint, lambda _, __: ["x"]
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


@pytest.mark.parametrize(("count", "size"), [(6, 4), (20, 4), (40, 5)])
def test_samples_have_the_roles_that_they_have_in_memory(
    count: int, size: int, tmp_path: Path
) -> None:
    data, kept = drawn(count, size), CalibrationSamples(400)
    for batch in data:
        kept.update([batch], split=True)
    batches, tensors = stored(Twice(), data, tmp_path)
    parts = {
        Role.FIT: kept.batches(400),
        Role.JUDGE: kept.batches(400, holdout=True),
        Role.ESTIMATE: kept.estimates(400),
    }
    for role, expected in parts.items():
        rows = [x for b, x in zip(batches, tensors, strict=True) if b.role is role]
        found = torch.cat(rows).tolist() if rows else []
        assert sorted(found) == sorted(
            torch.cat([t for (t,) in expected]).tolist() if expected else []
        )
    held_out = bool(parts[Role.ESTIMATE])
    assert held_out is (count * size >= 48)
    assert all(b.measured is (b.role is Role.ESTIMATE or not held_out) for b in batches)
    assert [batch.number for batch in batches] == list(range(len(batches)))


def test_batches_that_cannot_be_cut_have_one_role(tmp_path: Path) -> None:
    batches, _ = stored(Joined(), drawn(60), tmp_path)
    assert [batch.size for batch in batches] == [4] * 60
    assert {batch.role for batch in batches} == set(Role)


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
    in_memory = memory.fidelity.estimate.pooled_db
    blocks = qtool.quantize_by_blocks(
        EXAMPLE / "model", data, tmp_path / "net.onnx", task=TASK, **how
    )
    own = blocks.verification.fidelity.estimate
    assert own is not None
    assert own.samples == memory.fidelity.estimate.samples
    assert own.median_db == pytest.approx(memory.fidelity.estimate.median_db, abs=0.3)
    assert f"{own.samples} new samples" in str(blocks)
    session = ort.InferenceSession(tmp_path / "net.onnx")

    def run(batch: Any) -> Any:
        return session.run(["logits"], {name: t.numpy() for name, t in batch.items()})[0]

    estimate = own.pooled_db
    assert estimate is not None
    assert in_memory is not None
    assert abs(estimate - in_memory) < 0.5
    assert abs(estimate - sqnr(model, run, new)) < 0.5
    assert sqnr(model, run, data) > estimate + 0.5  # two thirds of these texts are fitted
