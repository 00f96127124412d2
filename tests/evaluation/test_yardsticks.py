"""What evaluate, report and gate say of outputs that are no scores, and what a file records."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import qtool
from qtool.backends.formats import open_file
from qtool.core.errors import DataError
from tests.metrics.outputs_of_networks import NETWORKS, Network, inputs_of, model_of

FORECAST, SELECTION = "forecast of six steps", "transformer detector with the best queries"
LABELLED = "classifier, by the user's labels"


def files(case: str, folder: Path) -> tuple[Path, Path, dict[str, np.ndarray[Any, Any]]]:
    """Return a float file, one with slightly other weights, and inputs."""
    model = model_of(NETWORKS[case])
    onnx.save(model, folder / "float.onnx")
    generator = np.random.default_rng(2)
    for weight in model.graph.initializer:
        array = numpy_helper.to_array(weight)
        noise = 1e-3 * generator.normal(size=array.shape)
        weight.CopyFrom(numpy_helper.from_array((array + noise).astype(np.float32), weight.name))
    onnx.save(model, folder / "other.onnx")
    return folder / "float.onnx", folder / "other.onnx", inputs_of(model)


@pytest.mark.parametrize(
    ("case", "kinds"), [(FORECAST, ["numbers"]), (SELECTION, ["numbers", "token"])]
)
def test_outputs_without_labels_have_the_yardstick_of_their_kind(
    case: str, kinds: list[str], tmp_path: Path
) -> None:
    real, other, inputs = files(case, tmp_path)
    found = qtool.evaluate(other, real, inputs, seconds=0, other_model=True).accuracy.models[1]
    assert [each.kind for each in found.yardsticks] == kinds
    assert min(each.value for each in found.yardsticks) > 0.95
    assert found.agreement is None
    options = qtool.ReportOptions(samples=8, seconds=0.01)
    report = qtool.report(other, inputs, tmp_path / "page", options, model=real, other_model=True)
    assert report.accuracy.models[1].yardsticks == found.yardsticks
    gate = qtool.gate(other, real, inputs, other_model=True)
    assert f"agreement ({kinds[0]})" in str(gate)


def test_every_output_is_judged_and_no_state(tmp_path: Path) -> None:
    real, other, inputs = files("boxes and scores of anchors (SSD)", tmp_path)
    rows = dict(qtool.evaluate(other, real, inputs, seconds=0, other_model=True).summary().rows)
    assert rows["agreement"].count(": ") == 2
    real, other, inputs = files("LSTM with its states", tmp_path)
    found = qtool.evaluate(other, real, inputs, seconds=0, other_model=True).accuracy.models[1]
    assert len(found.yardsticks) < len(found.outputs)


def test_whole_numbers_are_equal_or_not(tmp_path: Path) -> None:
    real, other, inputs = files("classifier with its answer", tmp_path)
    for file in (real, other):
        model = onnx.load(file)
        del model.graph.output[:-1]
        onnx.save(model, file)
    inputs = {name: np.random.default_rng(4).normal(size=(480, 16)).astype("f4") for name in inputs}
    result = qtool.evaluate(other, real, inputs, seconds=0, other_model=True)
    (found,) = result.accuracy.models[1].yardsticks
    assert (found.kind, found.compared) == ("equal", len(next(iter(inputs.values()))))
    assert "SQNR" not in str(result)
    assert "agreement (equal)" in str(qtool.gate(other, real, inputs, other_model=True))


def test_one_class_in_all_samples_is_no_reason_to_ship(tmp_path: Path) -> None:
    real, other, inputs = files("image classifier with softmax (keras)", tmp_path)
    inputs = {name: np.repeat(array[:1], 400, 0) for name, array in inputs.items()}
    options = qtool.ReportOptions(samples=8, seconds=0.01)
    report = qtool.report(other, inputs, tmp_path / "page", options, model=real, other_model=True)
    caution = "'predictions' has one class in all samples, so that equal ones prove little"
    assert report.accuracy.warnings[-1] == caution
    (check,) = [c for c in report.models[1].verdict.checks if c.name == "accuracy"]
    assert (check.level, report.accuracy.models[1].agreement.value) == ("look", 1.0)


def test_rows_that_values_decide_end_in_a_sentence(tmp_path: Path) -> None:
    real, other, inputs = files("detector with its selection", tmp_path)
    with pytest.raises(DataError, match="values decide how many rows each output has"):
        qtool.evaluate(other, real, inputs, seconds=0, other_model=True)
    for file in (real, other):
        model = onnx.load(file)
        name = next(node.input[1] for node in model.graph.node if "NonMax" in node.op_type)
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
        onnx.save(model, file)
    result = qtool.evaluate(other, real, inputs, seconds=0, other_model=True)
    assert "values decide how many rows 'selected', 'rows' has" in str(result)


@pytest.mark.parametrize(
    ("batches", "recipe"),
    [
        ([(torch.randn(32, 16), torch.arange(32) % 6) for _ in range(2)], None),
        ([torch.randn(32, 16) for _ in range(2)], {"outputs": ["output=class"]}),
    ],
    ids=["labels", "recipe"],
)
def test_a_file_records_what_its_output_is(batches: list[Any], recipe: Any, tmp_path: Path) -> None:
    real, _, _ = files(LABELLED, tmp_path)
    model = qtool.quantize(qtool.load_model(real), batches, accuracy="fast", recipe=recipe)
    assert model.fidelity.estimate.agreements[0].kind == "class"
    model.export(tmp_path / "int8.onnx")
    data = np.random.default_rng(3).normal(size=(40, 16)).astype(np.float32)
    found = qtool.evaluate(tmp_path / "int8.onnx", real, data, seconds=0).accuracy
    assert (found.scores, found.models[1].yardsticks) == ("classes", ())


class Selecting(torch.nn.Module):
    """Keeps the rows with a positive first value, and computes on them."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.body(x)
        return self.head(h[h[:, 0] > 0]), h


def test_steps_that_judge_leave_out_rows_that_values_decide() -> None:
    torch.manual_seed(0)
    batches = [torch.randn(32, 16) for _ in range(3)]
    model = qtool.quantize(Selecting().eval(), batches, recover=["gptq", "sensitive-layers"])
    assert [note for note in model.notes if "failure" in note] == []
    assert [each.output for each in model.fidelity.outputs] == ["output_1"]
    assert "values decide how many rows 'output_0' has" in str(model.fidelity)


def test_positions_up_to_a_computed_size_are_a_mask(tmp_path: Path) -> None:
    """Of padded texts: values that are masked have as many rows as the input."""
    network = Network(
        "(float[N,12,16] x, int64[N] lengths, float[16,8] w0) => (float[N,12,8] y)",
        "h = MatMul(x, w0) l = ReduceMax<keepdims=0>(lengths) a = Constant<value_int=0>() "
        "o = Constant<value_int=1>() p = Range(a, l, o) n = Shape(lengths) "
        "c = Constant<value_ints=[1]>() k = Reshape(l, c) s = Concat<axis=0>(n, k) "
        "e = Expand(p, s) u = Unsqueeze(lengths, c) m = Less(e, u) d = Constant<value_ints=[2]>() "
        "v = Unsqueeze(m, d) z = Constant<value_float=0.0>() y = Where(v, h, z)",
        {},
    )
    onnx.save(model_of(network), tmp_path / "net.onnx")
    assert open_file(tmp_path / "net.onnx").output_evidence()["y"].rows == 0


def test_a_size_that_is_computed_from_values_decides_rows(tmp_path: Path) -> None:
    """As a decoder in a loop cuts what it has written."""
    network = Network(
        "(float[N,12,16] x, float[16,8] w0) => (float[N,K,8] steps, float[N,12,8] all)",
        "all = MatMul(x, w0) m = ReduceMax<keepdims=0>(all) t = Constant<value_float=2.0>() "
        "p = Mul(m, t) c = Cast<to=7>(p) a = Constant<value_ints=[1]>() "
        "a0 = Constant<value_ints=[0]>() u = Unsqueeze(c, a0) e = Add(u, a) "
        "steps = Slice(all, a0, e, a)",
        {},
    )
    onnx.save(model_of(network), tmp_path / "net.onnx")
    batches = [torch.randn(1, 12, 16) * k for k in (1, 2) for _ in range(20)]
    file = qtool.load_model(tmp_path / "net.onnx")
    model = qtool.quantize(file, batches, recover=["gptq", "sensitive-layers"])
    assert [note for note in model.notes if "failure" in note] == []
    assert [each.output for each in model.fidelity.outputs] == ["all"]
    assert "values decide how many rows 'steps' has" in str(model.fidelity)
