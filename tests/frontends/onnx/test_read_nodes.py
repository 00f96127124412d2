"""Equal weights of a file are one weight, whatever the exporter wrote between them."""

from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import qtool
from qtool.core.sqnr import sqnr
from qtool.frontends.onnx.onnx_file import load_onnx
from qtool.plugins.tflite.file import load
from tests.named_cases import cases

WIDTH, LAYERS = 64, 3
READS = {  # from the initializer w or its transpose t to the weight of layer i
    "Identity": "w{i} = Identity (w)",
    "Transpose": "w{i} = Transpose <perm = [1, 0]> (t)",
    "Reshape": "w{i} = Reshape (w, sizes)",
    "Cast": "w{i} = Cast <to = 1> (half)",
    "Constant": "w{i} = Identity (copy{i})",
}


def network(kind: str) -> onnx.ModelProto:
    lines, x = [], "x"
    for i in range(LAYERS):
        lines += [READS[kind].format(i=i), f"a{i} = MatMul ({x}, w{i})", f"r{i} = Relu (a{i})"]
        lines += [f"s{i} = Add (r{i}, {x})"]
        x = f"s{i}"
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[N,{WIDTH}] x) => (float[N,{WIDTH}] y) {{ {" ".join(lines)} y = MatMul ({x}, head) }}"""
    model = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    w = (random.normal(size=(WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float16).astype(np.float32)
    arrays = {"w": w, "t": w.T, "half": w.astype(np.float16), "sizes": np.array(w.shape)}
    arrays |= {f"copy{i}": w for i in range(LAYERS)}
    arrays["head"] = random.normal(size=w.shape).astype(np.float32)
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(a), n) for n, a in arrays.items() if n in read
    )
    return model


def quantize(model: onnx.ModelProto, x: np.ndarray, folder: Path, mode: str, name: str) -> float:
    """Write the quantized model; return its SQNR in the runtime."""
    onnx.save(model, folder / "float.onnx")
    data = [torch.from_numpy(x)]
    made = qtool.quantize(load_onnx(folder / "float.onnx"), data, mode=mode, accuracy="fast")
    made.export(folder / name)
    paths = (folder / "float.onnx", folder / name)
    sessions = [ort.InferenceSession(p, providers=["CPUExecutionProvider"]) for p in paths]
    exact, coded = (s.run(None, {s.get_inputs()[0].name: x})[0] for s in sessions)
    return sqnr(exact, coded) or float("inf")


def large(path: Path) -> list[onnx.TensorProto]:
    bytes_of = {TensorProto.FLOAT: 4}
    tensors = onnx.load(path).graph.initializer
    return [t for t in tensors if prod(t.dims) * bytes_of.get(t.data_type, 1) > WIDTH**2 // 4]


@cases(
    "kind, mode",
    *((kind, "static") for kind in READS),  # how it is read decides, not how it is stored
    *(("Identity", mode) for mode in ("dynamic", "weight-only-int4")),
)
def test_a_weight_that_layers_share_is_stored_once(kind: str, mode: str, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(32, WIDTH)).astype(np.float32)
    db = quantize(network(kind), x, tmp_path, mode, "int8.onnx")
    assert db > (15 if "int4" in mode else 30)
    assert len(large(tmp_path / "int8.onnx")) == 2  # of the layers, of the head


@pytest.mark.parametrize("mode", ["static", "weight-only-int4"])
def test_a_table_and_the_head_that_is_its_transpose(mode: str, tmp_path: Path) -> None:
    words = 80
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (int64[N,S] ids) => (float[N,S,{words}] y) {{
            e = Gather (table, ids)
            h = Tanh (e)
            head = Transpose <perm = [1, 0]> (table)
            y = MatMul (h, head)
        }}"""
    )
    random = np.random.default_rng(0)
    table = random.normal(size=(words, WIDTH)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(table, "table"))
    ids = random.integers(0, words, (32, 5))
    assert quantize(model, ids, tmp_path, mode, "int8.onnx") > (15 if "int4" in mode else 30)
    assert len(large(tmp_path / "int8.onnx")) == 1


def test_a_filter_of_several_convolutions_in_both_formats(tmp_path: Path) -> None:
    """As converters of TensorFlow write it: a transpose per use, here of a filter bank."""
    lines = [
        f"w{i} = Transpose <perm = [3, 2, 0, 1]> (bank) c{i} = Conv (x, w{i})" for i in range(3)
    ]
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,4,6,6] x) => (float[N,32,4,4] y) {{
            {" ".join(lines)}
            r = Relu (c0) s = Sigmoid (c1) t = Tanh (c2) u = Add (r, s) y = Add (u, t)
        }}"""
    )
    random = np.random.default_rng(0)
    bank = (random.normal(size=(3, 3, 4, 32)) / 6).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(bank, "bank"))
    x = random.normal(size=(32, 4, 6, 6)).astype(np.float32)
    assert quantize(model, x, tmp_path, "static", "int8.onnx") > 30
    assert len(large(tmp_path / "int8.onnx")) == 1
    made = qtool.quantize(
        load_onnx(tmp_path / "float.onnx"), [torch.from_numpy(x)], target="tflite"
    )
    made.export(tmp_path / "int8.tflite")
    stored = [t.data for t in load(tmp_path / "int8.tflite").tensors if t.data is not None]
    assert len({data.tobytes() for data in stored if data.size == bank.size}) == 1


def test_equal_vectors_stay_weights_of_their_own(tmp_path: Path) -> None:
    """Biases of zeros and norms of ones are equal by chance; steps change them layer by layer."""
    model = network("Identity")
    for i in range(LAYERS):
        ones = np.ones(WIDTH, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(ones, f"g{i}"))
        model.graph.node.insert(0, helper.make_node("Identity", [f"g{i}"], [f"gain{i}"]))
        for node in model.graph.node:
            if node.op_type == "Add":
                node.input[1] = node.input[1] if node.output[0] != f"s{i}" else f"gain{i}"
    onnx.save(model, tmp_path / "float.onnx")
    module = load_onnx(tmp_path / "float.onnx")
    assert sum(p.ndim == 1 for p in module.parameters()) == LAYERS
    assert sum(p.ndim == 2 for p in module.parameters()) == 2
