"""Files in float16, bfloat16 and float64 are quantized as copies in float32."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper

import qtool
from qtool.backends.onnx.nested_graphs import nested_nodes
from qtool.core.sqnr import sqnr
from qtool.evaluation.speedup import measure_speedup
from qtool.frontends.onnx.float32_copy import convert_to_float32, types_to_convert
from qtool.frontends.onnx.onnx_file import load_onnx
from tests.frontends.onnx.files import images

TYPES = {
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float64": TensorProto.DOUBLE,
}
MODES = ("static", "dynamic", "weight-only", "weight-only-int4")


def network(kind: str, float32_ports: bool = False) -> onnx.ModelProto:
    """A network with its type in initializers, constants, attributes, casts and subgraphs."""
    number = TYPES[kind]
    port = "float" if float32_ports else kind.replace("float64", "double")
    inner = kind.replace("float64", "double")
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g ({port}[N,3,8,8] x) => ({port}[N,5] y) {{
            x0 = Cast <to = {number}> (x)
            c = Conv <pads = [1, 1, 1, 1]> (x0, w, b)
            half = Constant <value = {inner}[1] {{2}}> ()
            scaled = Mul (c, half)
            sizes = Constant <value_ints = [4, 1, 1]> ()
            shift = ConstantOfShape <value = {inner}[1] {{1}}> (sizes)
            moved = Add (scaled, shift)
            top = ReduceMax <keepdims = 0> (moved)
            zero = Constant <value = {inner} {{0}}> ()
            positive = Greater (top, zero)
            chosen = If (positive) <
                then_branch = t () => ({inner}[N,4,8,8] p) {{
                    two = Constant <value = {inner} {{2}}> ()
                    p = Mul (moved, two)
                }},
                else_branch = e () => ({inner}[N,4,8,8] n) {{
                    f = Cast <to = {number}> (moved)
                    n = Neg (f)
                }}>
            mean = GlobalAveragePool (chosen)
            flat = Flatten (mean)
            z = MatMul (flat, m)
            y = Cast <to = {TensorProto.FLOAT if float32_ports else number}> (z)
        }}"""
    )
    for node in nested_nodes(model.graph.node):
        for attribute in node.attribute:
            if attribute.t.data_type in (TensorProto.FLOAT16, TensorProto.BFLOAT16):
                bits = list(attribute.t.int32_data)  # the parser takes the number for these
                attribute.t.CopyFrom(helper.make_tensor("", number, attribute.t.dims, bits))
    random = np.random.default_rng(0)
    for name, shape in (("w", (4, 3, 3, 3)), ("b", (4,)), ("m", (4, 5))):
        values = random.normal(size=shape).ravel()
        model.graph.initializer.append(helper.make_tensor(name, number, shape, values))
    return model


def save(model: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(model, folder / "float.onnx")
    return folder / "float.onnx"


def run(path: Path, x: torch.Tensor, dtype: type = np.float32) -> np.ndarray:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x.numpy().astype(dtype)})[0].astype(np.float32)


@pytest.mark.parametrize(
    ("ports", "mode"), [*(("own", mode) for mode in MODES), ("float32", "static")]
)
def test_a_float16_file_in_every_mode(tmp_path: Path, mode: str, ports: str) -> None:
    model = network("float16", ports == "float32")
    path, x = save(model, tmp_path), images(32)
    before = path.read_bytes()
    made = qtool.quantize(load_onnx(path), [x], mode=mode, accuracy="fast")
    result = made.export(tmp_path / "int8.onnx")

    exact = run(path, x, np.float32 if ports == "float32" else np.float16)
    assert sqnr(exact, run(tmp_path / "int8.onnx", x)) > (15 if "int4" in mode else 30)
    assert result.exactness.passed
    interface = ", and its interface is float32 (x, y)" if ports == "own" else ""
    note = f"the file is in float16: a copy in float32 is quantized{interface}"
    assert note in made.notes
    assert path.read_bytes() == before
    kinds = {t.data_type for t in onnx.load(tmp_path / "int8.onnx").graph.initializer}
    assert TensorProto.FLOAT16 not in kinds


@pytest.mark.parametrize(
    ("kind", "dtype"), [("bfloat16", torch.bfloat16), ("float64", torch.float64)]
)
def test_other_types(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    path, x = save(network(kind), tmp_path), images(32)
    made = qtool.quantize(load_onnx(path), [x.to(dtype)], accuracy="fast")
    made.export(tmp_path / "int8.onnx")
    copy = network(kind)
    convert_to_float32(copy, types_to_convert(copy))
    assert not types_to_convert(copy)
    onnx.save(copy, tmp_path / "copy.onnx")
    assert sqnr(run(tmp_path / "copy.onnx", x), run(tmp_path / "int8.onnx", x)) > 30
    assert any(f"the data is in {kind}" in note for note in made.notes)
    assert any(f"the file is in {kind}" in note for note in made.notes)


def test_time_and_accuracy_are_relative_to_the_file_itself(tmp_path: Path) -> None:
    path, x = save(network("float16"), tmp_path), images(16).half()
    made = qtool.quantize(load_onnx(path), [x], accuracy="fast")
    made.export(tmp_path / "int8.onnx")
    speed = measure_speedup(made, tmp_path / "int8.onnx", seconds=0.01)
    assert speed.baseline == "float.onnx"
    assert speed.float_bytes == made.captured.file_bytes == path.stat().st_size
    for batch in (x, x.float()):
        shown = qtool.evaluate(tmp_path / "int8.onnx", load_onnx(path), [batch], seconds=0.01)
        assert shown.accuracy.models[1].sqnr_db > 30
    assert qtool.verify(tmp_path / "int8.onnx", data=[x]).passed
    files = [path, tmp_path / "int8.onnx"]
    assert len(qtool.bench(files, [x], seconds=0.01).timings)


@pytest.mark.parametrize("kind", ["float16", pytest.param("bfloat16", marks=pytest.mark.matrix)])
def test_reports_and_blocks(tmp_path: Path, kind: str) -> None:
    path, x = save(network(kind), tmp_path), images(8)
    made = qtool.quantize(load_onnx(path), [x], mode="dynamic", accuracy="fast")
    made.export(tmp_path / "int8.onnx")
    options = qtool.ReportOptions(seconds=0.01)
    report = qtool.report(tmp_path / "int8.onnx", [x], tmp_path / "page", options, model=path)
    assert report.accuracy.models[1].sqnr_db > 30

    big = network(kind)
    random = np.random.default_rng(0)
    wide = random.normal(size=(5, 1024)).ravel()
    big.graph.initializer.append(helper.make_tensor("wide", TYPES[kind], (5, 1024), wide))
    big.graph.node[-2].output[0] = "z0"
    big.graph.node.insert(
        len(big.graph.node) - 1, helper.make_node("MatMul", ["z0", "wide"], ["z"])
    )
    big.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1024
    apart = {"save_as_external_data": True, "location": "float.data", "size_threshold": 0}
    onnx.save(big, tmp_path / "big.onnx", **apart)
    qtool.quantize_by_blocks(tmp_path / "big.onnx", [x], tmp_path / "blocks.onnx", mode="static")
    copy = onnx.load(tmp_path / "big.onnx")
    convert_to_float32(copy, types_to_convert(copy))
    onnx.save(copy, tmp_path / "copy.onnx")
    assert sqnr(run(tmp_path / "copy.onnx", x), run(tmp_path / "blocks.onnx", x)) > 30


def test_types_that_stay() -> None:
    """Weights that are only stored in float16, and float64 next to float32, are not converted."""
    stored = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[N,2] x) => (float[N,2] y) <float16[2,2] w = {1, 0, 0, 1}> {
            f = Cast <to = 1> (w)
            y = MatMul (x, f)
        }"""
    )
    mixed = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[N,2] x) => (float[N,2] y) {
            d = Cast <to = 11> (x)
            s = Sin (d)
            y = Cast <to = 1> (s)
        }"""
    )
    for model in (stored, mixed):
        assert convert_to_float32(model, types_to_convert(model)) == ()


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_a_cast_in_the_middle_is_said(kind: str) -> None:
    """Its rounding is left out; the file is in float32 all the same."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 18]>
        g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {{1,2,3,4,1,2,3,4,1,2,3,4,1,2,3,4}}> {{
            a = MatMul (x, w)
            [rounded] b = Cast <to = {TYPES[kind]}> (a)
            [back] y = Cast <to = 1> (b)
        }}"""
    )
    (note,) = convert_to_float32(model, types_to_convert(model))
    assert note.startswith(f"rounded casts to {kind}, which is left out: values differ from")
