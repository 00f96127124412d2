"""Inputs for a file: the user's batches checked against it, or made up within its ranges."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import qtool
from qtool.core.errors import DataError
from qtool.evaluation.feeder import Feeder
from qtool.evaluation.latency.decoding import phases
from qtool.evaluation.latency.node_times import profile_nodes
from qtool.evaluation.model_inputs import check_same_inputs, random_inputs
from qtool.evaluation.options import ReportOptions
from qtool.evaluation.user_metrics import user_metrics
from tests.backends.onnx.export.networks import exported, quantized
from tests.evaluation.measured import measure_outputs
from tests.evaluation.onnx_files import linear_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return linear_file(tmp_path / "a.onnx", np.eye(3))


X = torch.arange(6.0).reshape(2, 3)


FORMS = [
    *(X, (X, torch.zeros(2)), {"x": X}, X.numpy(), {"x": X, "y": X}),
    *({"image": X}, {"image": X, "labels": X}, {"y": X}),  # the only entry that is no label
    *(X.double(), X.half(), X.bfloat16()),
]


@pytest.mark.parametrize("batch", FORMS)
def test_batches_in_any_form(file: Path, batch: object) -> None:
    (array,) = Feeder(file).arrays(batch, 0)
    assert np.array_equal(array, X.numpy())


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({"a": X, "b": X}, "batch 7 lacks input 'x': it gives a, b; the model takes x"),
        (X.long(), "batch 7, input 'x' is int64, the model takes float32"),
        (X[:, :2], r"batch 7, input 'x' has shape \[2, 2\], the model takes \['batch', 3\]"),
        (X / 0, "batch 7, input 'x' holds"),
        ({"x": [X], "a": X}, r"batch 7 lacks input 'x': it gives x\.0, a; the model takes x"),
        ({"x": 1.5}, "is a float, not an array or tensor"),
        ("text", "a batch is a str"),
    ],
)
def test_batches_that_do_not_fit(file: Path, batch: object, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Feeder(file).arrays(batch, 7)


def test_data_is_counted(file: Path) -> None:
    found = list(Feeder(file, [X, X + 1]))
    assert np.array_equal(found[1][0], X.numpy() + 1)
    with pytest.raises(DataError, match="batch 1, input 'x'"):
        list(Feeder(file, [X, X[:, :1]]))


def test_an_input_with_the_name_of_labels_is_an_input(tmp_path: Path) -> None:
    file = linear_file(tmp_path / "a.onnx", np.eye(3), name="target")
    data = [{"target": X, "image": X + 1}, {"image": X + 1, "target": X, "labels": X}]
    for (array,) in Feeder(file, data):
        assert np.array_equal(array, X.numpy())
    measured = measure_outputs([file], data)
    assert measured.signal == pytest.approx(2 * [*np.square(X.numpy()).sum(1)])


def test_files_of_one_task(file: Path, tmp_path: Path) -> None:
    check_same_inputs([file, linear_file(tmp_path / "b.onnx", np.ones((3, 5)))])
    check_same_inputs([file, linear_file(tmp_path / "named.onnx", np.eye(3), name="input")])
    other = linear_file(tmp_path / "c.onnx", np.eye(3), name="z", rank=3)
    with pytest.raises(DataError, match=r"c.onnx takes other inputs \(z: tensor\(float\)"):
        check_same_inputs([file, other])
    cached = linear_file(tmp_path / "d.onnx", np.eye(3), name="past_key_values.0.key")
    for files in ([file, cached], [cached, file]):
        with pytest.raises(DataError, match=r"d.onnx has a KV cache as inputs, .*of one 'task'"):
            check_same_inputs(files)


def test_noise_of_one_file_alone_is_an_option(file: Path, tmp_path: Path) -> None:
    model, other = onnx.load(file), tmp_path / "noisy.onnx"
    model.graph.input.append(onnx.helper.make_tensor_value_info("noise.0", 1, ["batch", 3]))
    onnx.save(model, other)
    with pytest.raises(DataError, match=r"noise of both files with qtool.noise_input\(model\)"):
        check_same_inputs([file, other])


def test_a_batch_is_cut_or_repeated(file: Path, tmp_path: Path) -> None:
    def timed(files: list[Path], size: int | None = None) -> np.ndarray:
        (phase,) = phases(files, [X.numpy()], size)
        return phase.inputs[0]

    assert np.array_equal(timed([file], 1), X.numpy()[:1])
    assert np.array_equal(timed([file], 5), X.numpy()[[0, 1, 0, 1, 0]])
    assert np.array_equal(timed([file, file]), X.numpy())
    fixed = linear_file(tmp_path / "fixed.onnx", np.eye(3), size=2)
    assert timed([fixed], 3).shape == (2, 3)
    assert timed([fixed, file], 2).shape == (2, 3)


def test_a_fixed_batch_gets_batches_of_its_size(tmp_path: Path) -> None:
    """Of any data, in each command on files."""
    fixed = linear_file(tmp_path / "fixed.onnx", np.eye(3), size=2)
    data = [torch.arange(15.0).reshape(5, 3), torch.ones(1, 3)]
    sizes = [len(arrays[0]) for arrays in Feeder(fixed, data)]
    assert sizes == [2, 2, 2]
    other, options = tmp_path / "other.onnx", ReportOptions(seconds=0.01, batch_sizes=(2,))
    other.write_bytes(fixed.read_bytes())
    for result in (
        measure_outputs([fixed], data),
        qtool.compare([fixed, other], data, options=options).accuracy,
    ):
        assert result.samples == 6


def test_random_inputs_reach_a_little_beyond_the_range(tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    path.write_bytes(exported("linear"))
    params = quantized("linear").parameters["input"]
    low = float(params.scale) * (0 - int(params.zero_point))
    high = float(params.scale) * (255 - int(params.zero_point))
    margin = 0.05 * (high - low)
    drawn = list(random_inputs(path, 600, 256))
    assert [len(b[0]) for b in drawn] == [256, 256, 88]
    values = np.concatenate([b[0] for b in drawn])
    assert low - margin <= values.min() < low
    assert high < values.max() <= high + margin
    again = next(random_inputs(path, 600, 256))
    assert np.array_equal(again[0], drawn[0][0])
    assert not np.array_equal(next(random_inputs(path, 600, 256, seed=1))[0], again[0])


def test_equal_names_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    """Other tools order inputs and outputs otherwise: every command computes the same."""
    files = []
    for order, results in (("ab", "xy"), ("ba", "yx")):
        values = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3])
            for n in (*order, *results)
        ]
        nodes = [helper.make_node(k, ["a", "b"], [n]) for k, n in (("Sub", "x"), ("Add", "y"))]
        graph = helper.make_graph(nodes, "results", values[:2], values[2:])
        opsets = [helper.make_opsetid("", 21)]
        files.append(tmp_path / f"{order}.onnx")
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), files[-1])
    a, b = np.random.default_rng(0).normal(size=(2, 40, 3)).astype(np.float32)
    data = [(a, b)]
    accuracy = qtool.compare(files, data, options=ReportOptions(seconds=0.01)).accuracy
    assert accuracy.models[1].sqnr_db is None  # no error at all
    decided = qtool.gate(files[1], files[0], data, a - b, metric="mae", other_model=True)
    assert decided.metric.value == 0

    def mean_of_x(model: Any) -> float:
        return float(model(*data[0])[0].mean())

    assert user_metrics(mean_of_x, files, "mean_of_x")[0].values == 2 * (
        pytest.approx((a - b).mean()),
    )
    assert [n.name for n in profile_nodes(files, data[0], runs=1)]
