"""Which tensors are codes, what makes them, and models that return them."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType
from torch import nn

import qtool
from qtool.backends.onnx.storage import load, save
from qtool.backends.onnxruntime.session import optimised_graph, run, session
from qtool.plugins.emulators.code_probes import (
    CodeTensor,
    code_tensors,
    float_kernels,
    hidden_kernels,
    with_outputs,
)
from qtool.plugins.emulators.model_forms import Form, int8_taken_for_uint8
from tests.plugins.emulators.networks import batches, by_onnxruntime, float_file

LAYERS = ["Conv", "Conv", "Add"]


@pytest.mark.parametrize("activations", [QuantType.QUInt8, QuantType.QInt8])
def test_codes_of_a_qdq_file_in_the_order_of_the_graph(
    tmp_path: Path, activations: QuantType
) -> None:
    model = load(by_onnxruntime(tmp_path / "a.onnx", activations=activations))
    codes = code_tensors(model)
    assert [c.op for c in codes if c.op in LAYERS] == LAYERS
    assert codes[0].op == "QuantizeLinear"  # the input
    assert {c.dtype for c in codes} == {"uint8" if activations is QuantType.QUInt8 else "int8"}
    order = [o for n in model.graph.node for o in n.output]
    assert [c.tensor for c in codes] == sorted((c.tensor for c in codes), key=order.index)


def test_codes_of_a_qoperator_file(tmp_path: Path) -> None:
    model = load(by_onnxruntime(tmp_path / "a.onnx", QuantFormat.QOperator))
    codes = code_tensors(model)
    assert [c.op for c in codes][:3] == ["QuantizeLinear", "QLinearConv", "QLinearConv"]
    assert "QLinearAdd" in [c.op for c in codes]
    made = {o: n.op_type for n in model.graph.node for o in n.output}
    assert all(made[c.tensor] == c.op for c in codes)


def test_a_file_in_float_has_none(tmp_path: Path) -> None:
    assert code_tensors(load(float_file(tmp_path / "a.onnx"))) == ()


def test_quantized_weights_are_none() -> None:
    """Some tools write weights in float and quantize them in the graph."""
    stored = [
        numpy_helper.from_array(np.ones((3, 3), np.float32), "w"),
        numpy_helper.from_array(np.float32(0.1), "s"),
        numpy_helper.from_array(np.int8(0), "z"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "s", "z"], ["wq"]),
        helper.make_node("DequantizeLinear", ["wq", "s", "z"], ["wd"]),
        helper.make_node("MatMul", ["x", "wd"], ["m"], name="product"),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.INT8, ["n", 3])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], stored))
    (code,) = code_tensors(model)
    assert (code.tensor, code.node, code.op, code.dtype) == ("y", "product", "MatMul", "int8")
    assert len(with_outputs(model, [code]).graph.output) == 1  # it is one already


def test_products_inside_kernels_of_floats() -> None:
    kinds = ["DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulNBits", "QAttention"]
    others = [
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "MatMul",
    ]
    nodes = [helper.make_node(k, ["x"], [k], name=k.lower()) for k in (*kinds, *others)]
    model = helper.make_model(helper.make_graph(nodes, "g", [], []))
    assert hidden_kernels(model, ()) == tuple(f"{k.lower()} ({k})" for k in kinds)
    seen = [CodeTensor(kinds[1], "", "", "float32")]
    assert len(hidden_kernels(model, seen)) == len(kinds) - 1


def test_linear_layers_that_give_floats(tmp_path: Path) -> None:
    """Their results are read in float, or are outputs; their kernels read codes all the same."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).eval()
    file = tmp_path / "a.onnx"
    qtool.quantize(net, [torch.randn(16, 8)], accuracy="fast").export(file)
    model = load(file)
    codes = code_tensors(model)
    save(with_outputs(model, codes), tmp_path / "b.onnx")
    found = float_kernels(optimised_graph(tmp_path / "b.onnx"), model, codes)
    assert [(f.node, f.dtype) for f in found] == [("0", "float32"), ("2", "float32")]
    assert not {f.tensor for f in found} & {c.tensor for c in codes}
    assert found[1].tensor == model.graph.output[0].name


@pytest.mark.parametrize("activations", [QuantType.QUInt8, QuantType.QInt8])
@pytest.mark.parametrize("format_", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_asking_for_codes_leaves_the_outputs_as_they_are(
    tmp_path: Path, activations: QuantType, format_: QuantFormat
) -> None:
    file = by_onnxruntime(tmp_path / "a.onnx", format_, activations)
    model, x = load(file), [batches()[0].numpy()]
    form = Form.of(tmp_path / "m", model, code_tensors(model), int8_taken_for_uint8(file))
    (wanted,) = run(session(file, threads=1), x)
    np.testing.assert_array_equal(run(session(form.path, threads=1), x)[0], wanted)


def test_int8_that_the_runtime_takes_for_uint8_is_asked_for_as_such(tmp_path: Path) -> None:
    file = by_onnxruntime(tmp_path / "a.onnx", activations=QuantType.QInt8)
    model, codes = load(file), code_tensors(load(file))
    lifted = int8_taken_for_uint8(file)
    assert lifted < {c.tensor for c in codes}  # not those that two nodes read
    forms = [Form.of(tmp_path / n, model, codes, names) for n, names in (("a", lifted), ("b", ()))]
    x = [batches()[0].numpy()]
    first, second = (run(session(f.path, threads=1), x) for f in forms)
    for name in lifted:
        one, other = (found[forms[0].place[name]] for found in (first, second))
        assert (one.dtype, other.dtype) == (np.uint8, np.int8)
    name = codes[0].tensor
    if name in lifted:
        at = forms[0].place[name]
        np.testing.assert_array_equal(first[at].astype(int) - 128, second[at])


def test_kernels_on_given_codes_give_the_same_codes(tmp_path: Path) -> None:
    """... and other codes where they are given others: they do read them."""
    from qtool.plugins.emulators.jobs import Job, read_array, run_jobs, write_array

    file = by_onnxruntime(tmp_path / "a.onnx")
    model, codes = load(file), code_tensors(load(file))
    form = Form.of(tmp_path / "m", model, codes, frozenset())
    for name in ("in", "seen", "forced", "other"):
        (tmp_path / name).mkdir()
    write_array(tmp_path / "in", 0, 0, batches()[0].numpy())
    seen = Job(form.path, tmp_path / "in", tmp_path / "seen", 1)
    run_jobs(None, [seen], tmp_path / "job", 60)
    job = form.forced(seen, (), tmp_path / "forced")
    run_jobs(None, [job], tmp_path / "job2", 60)
    for code in codes:
        at = form.place[code.tensor]
        one, other = (read_array(j.outputs, 0, at) for j in (seen, job))
        np.testing.assert_array_equal(one, other)
    first = next(c for c in codes if c.op == "Conv")
    given = [i.name for i in onnx.load(job.model).graph.input].index(f"{first.tensor}/given")
    write_array(job.inputs, 0, given, np.zeros_like(read_array(job.inputs, 0, given)))
    run_jobs(None, [job], tmp_path / "job3", 60)
    changed = [
        c.op
        for c in codes
        if (
            read_array(job.outputs, 0, form.place[c.tensor])
            != read_array(seen.outputs, 0, form.place[c.tensor])
        ).any()
    ]
    assert changed == ["Conv", "Add"]  # those that read it, and none behind them
