"""Vectors of texts: the output that has them, pooling, and the order of pairs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.core.errors import DataError
from qtool.metrics.ranks import rank_correlation
from qtool.metrics.vector_output import VectorOutput, read_pooling

GENERATOR = np.random.default_rng(0)
TABLE = GENERATOR.normal(size=(1000, 8)).astype(np.float32)
IDS = GENERATOR.integers(1, 1000, (120, 6))
LENGTHS = GENERATOR.integers(1, 7, 120)
MASK = (np.arange(6) < LENGTHS[:, None]).astype(np.int64)


def encoder(path: Path, noise: float = 0.0) -> Path:
    """States of tokens from a table, and as the second output those of the first token."""
    table = TABLE + noise * np.random.default_rng(1).normal(size=TABLE.shape).astype(np.float32)
    sizes: list[Any] = ["batch", "sequence"]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["states"]),
        helper.make_node("Cast", ["attention_mask"], ["ones"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["ones", "last"], ["column"]),
        helper.make_node("Div", ["column", "column"], ["one"]),  # NaN at padded tokens
        helper.make_node("Mul", ["states", "one"], ["last_hidden_state"]),
        helper.make_node("Gather", ["states", "zero"], ["first"], axis=1),
        helper.make_node("Sin", ["first"], ["pooler_output"]),
    ]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [
            helper.make_tensor_value_info(name, TensorProto.INT64, sizes)
            for name in ("input_ids", "attention_mask")
        ],
        [
            helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, [*sizes, 8]),
            helper.make_tensor_value_info("pooler_output", TensorProto.FLOAT, ["batch", 8]),
        ],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([-1]), "last"),
            numpy_helper.from_array(np.array(0), "zero"),
        ],
    )
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def pooled(pooling: str) -> np.ndarray:
    """The vectors of the texts, one by one."""
    texts = [TABLE[ids[:n]] for ids, n in zip(IDS, LENGTHS, strict=True)]
    return np.stack(
        [{"mean": t.mean(0), "max": t.max(0), "cls": t[0], "last": t[-1]}[pooling] for t in texts]
    )


def cosines(vectors: np.ndarray) -> np.ndarray:
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray((units[::2] * units[1::2]).sum(1))


NOISE = GENERATOR.normal(size=60) / 5
SCORES = cosines(pooled("mean")) + NOISE


def write_pooling(folder: Path, config: dict[str, Any]) -> None:
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))


def batches() -> list[dict[str, torch.Tensor]]:
    arrays = {"input_ids": torch.from_numpy(IDS), "attention_mask": torch.from_numpy(MASK)}
    return [{n: a[at : at + 40] for n, a in arrays.items()} for at in (0, 40, 80)]


@pytest.mark.parametrize("pooling", ["", "mean", "max", "cls", "last"])
def test_states_of_tokens_are_pooled_as_the_folder_says(pooling: str, tmp_path: Path) -> None:
    if pooling:
        write_pooling(tmp_path, {"pooling_mode": pooling})
    (tmp_path / "onnx").mkdir()
    real, file = encoder(tmp_path / "float.onnx"), encoder(tmp_path / "onnx" / "other.onnx", 1e-5)
    own = cosines(pooled(pooling or "mean"))
    result = qtool.gate(file, real, batches(), own + NOISE, metric="spearman", other_model=True)
    assert result.metric is not None, result
    expected = rank_correlation(own, own + NOISE)
    assert result.metric.float_ == pytest.approx(expected)
    assert result.metric.output == f"last_hidden_state, {pooling or 'mean'}-pooled"
    assert f" of {result.metric.output}, on 60 samples" in str(result)


def test_the_folder_of_the_processor_comes_first(tmp_path: Path) -> None:
    write_pooling(tmp_path, {"pooling_mode": "max"})
    write_pooling(tmp_path / "model", {"pooling_mode_cls_token": True, "include_prompt": True})
    file = encoder(tmp_path / "float.onnx")
    scores = cosines(pooled("cls")) + NOISE
    result = qtool.gate(
        file, file, batches(), scores, metric="spearman", processor=tmp_path / "model"
    )
    assert "cls-pooled" in str(result)


def test_agreement_of_states_is_that_of_their_pooled_vectors(tmp_path: Path) -> None:
    real, file = encoder(tmp_path / "float.onnx"), encoder(tmp_path / "other.onnx", 1e-4)
    result = qtool.gate(file, real, batches(), other_model=True)
    assert "agreement (cosine)" in str(result)
    assert " of last_hidden_state, mean-pooled, on 120 samples" in str(result)


class Grouped(list[Any]):
    """Batches of texts in another order than that of the data."""

    positions = np.argsort(LENGTHS, kind="stable")


def grouped() -> Grouped:
    at = Grouped.positions
    ids, mask = torch.from_numpy(IDS[at]), torch.from_numpy(MASK[at])
    return Grouped(
        {"input_ids": ids[i : i + 40], "attention_mask": mask[i : i + 40]} for i in (0, 40, 80)
    )


def test_pairs_are_those_of_the_data(tmp_path: Path) -> None:
    file = encoder(tmp_path / "float.onnx")
    results = [
        qtool.gate(file, file, data, SCORES, metric="spearman") for data in (batches(), grouped())
    ]
    assert results[0].metric is not None
    assert results[0].metric == results[1].metric


def test_a_function_sees_texts_and_their_labels_in_the_order_of_the_data(tmp_path: Path) -> None:
    seen = []

    def metric(outputs: Any, labels: Any) -> float:
        seen.append((outputs[0], labels))
        return 1.0

    file = encoder(tmp_path / "float.onnx")
    qtool.gate(file, file, grouped(), np.arange(120)[Grouped.positions], metric=metric)
    np.testing.assert_array_equal(seen[0][0][:, 0], TABLE[IDS[:, 0]])
    np.testing.assert_array_equal(seen[0][1], np.arange(120))


def test_a_sentence_embedding_is_not_pooled_again() -> None:
    output = VectorOutput.of(["token_embeddings", "sentence_embedding"])
    vectors = np.ones((4, 8), np.float32)
    assert output.vectors([np.zeros((4, 6, 8), np.float32), vectors]) is vectors
    assert output.text(is_pooled=False) == "sentence_embedding"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"pooling_mode": "attention"}, "pools by attention, not by one of mean, max, cls, last"),
        (
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "pools by cls, mean, not by one of",
        ),
    ],
)
def test_pooling_that_is_not_known(config: dict[str, Any], text: str, tmp_path: Path) -> None:
    write_pooling(tmp_path, config)
    with pytest.raises(DataError, match=text):
        read_pooling([tmp_path])
