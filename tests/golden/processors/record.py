"""Record ONNX Runtime's kernels on other processors into results.npz beside this script.

    python tests/golden/processors/record.py make FOLDER
    python tests/golden/processors/record.py run FOLDER vnni  # on a processor with VNNI
    qemu-x86_64 -cpu Haswell python tests/golden/processors/record.py run FOLDER haswell
    OPENBLAS_CORETYPE=Nehalem qemu-x86_64 -cpu Nehalem python ... run FOLDER nehalem
    qemu-aarch64 -cpu cortex-a53 ... python3 ... run FOLDER cortex-a53   # neoverse-n1, neoverse-n2
    node tests/golden/processors/record.mjs FOLDER  # wasm
    python tests/golden/processors/record.py collect FOLDER

`make` writes one model of independent nodes and its inputs; `run` needs numpy and onnxruntime
alone. (OPENBLAS_CORETYPE: numpy's OpenBLAS takes an emulated Nehalem for another processor.) The
file holds the arguments of `Profile.bind`, the inputs, and what each processor gave.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
MS = "com.microsoft"
SEED = 20
PAIRS = 1536
Params = dict[str, Any]


def params(kind: str, scale: Any, zero: int, axis: int | None = None) -> Params:
    values = np.asarray(scale, np.float32)
    zeros = np.full(values.shape, zero).tolist()
    return {"type": kind, "scale": values.astype(float).tolist(), "zero": zeros, "axis": axis}


class Cases:
    """The model under construction, and how each output is bound."""

    def __init__(self) -> None:
        from onnx import helper, numpy_helper

        self.helper, self.numpy_helper = helper, numpy_helper
        self.rng = np.random.default_rng(SEED)
        self.nodes: list[Any] = []
        self.stored: list[Any] = []
        self.fed: dict[str, np.ndarray] = {}
        self.kept: dict[str, np.ndarray] = {}
        self.cases: list[dict[str, Any]] = []
        self.outputs: list[Any] = []

    def scale(self) -> float:
        """Of three kinds; the last two make ties."""
        kind = len(self.cases) % 3
        if kind == 0:
            return float(np.exp(self.rng.uniform(-6, 1)))
        if kind == 1:
            return float(2.0 ** self.rng.integers(-6, 2))
        return float(np.float32(0.0173) * np.float32(self.rng.integers(1, 9)))

    def params(self, kind: str, scale: float | None = None) -> Params:
        low = 0 if kind == "uint8" else -128
        zero = int(self.rng.integers(low, low + 256))
        return params(kind, self.scale() if scale is None else scale, zero)

    def codes(self, kind: str, *shape: int) -> np.ndarray:
        low = 0 if kind == "uint8" else -128
        return self.rng.integers(low, low + 256, shape).astype(kind)

    def feed(self, array: np.ndarray) -> str:
        name = f"x{len(self.fed)}"
        self.fed[name] = np.ascontiguousarray(array)
        return name

    def keep(self, array: np.ndarray) -> str:
        """An argument of a binder, which is no input of the model."""
        name = f"k{len(self.kept)}"
        self.kept[name] = np.ascontiguousarray(array)
        return name

    def const(self, array: Any) -> str:
        name = f"c{len(self.stored)}"
        self.stored.append(self.numpy_helper.from_array(np.asarray(array), name))
        return name

    def given(self, p: Params) -> list[str]:
        return [
            self.const(np.asarray(p["scale"], np.float32)),
            self.const(np.asarray(p["zero"]).astype(p["type"])),
        ]

    def case(
        self,
        op: str,
        node: tuple[str, list[str], str],
        element: str,
        inputs: list[str],
        args: list[Any],
        attributes: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        name = f"y{len(self.cases)}"
        kind, read, domain = node
        options = attributes or {}
        self.nodes.append(self.helper.make_node(kind, read, [name], domain=domain, **options))
        element_type = self.helper.np_dtype_to_tensor_dtype(np.dtype(element))
        self.outputs.append(self.helper.make_tensor_value_info(name, element_type, None))
        case = {"op": op, "inputs": inputs, "args": args, "kwargs": kwargs, "output": name}
        self.cases.append(case)

    def save(self, folder: Path) -> None:
        import onnx

        helper = self.helper
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in self.fed.items()
        ]
        graph = helper.make_graph(self.nodes, "cases", infos, self.outputs, self.stored)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        onnx.save(model, folder / "model.onnx")
        (folder / "cases.json").write_text(json.dumps(self.cases))
        table, data = [], b""
        for name, array in (*self.fed.items(), *self.kept.items()):
            table.append([name, str(array.dtype), list(array.shape), len(data)])
            data += array.tobytes() + bytes(-array.nbytes % 8)
        (folder / "inputs.json").write_text(json.dumps(table))
        (folder / "inputs.bin").write_bytes(data)


TIES = (  # parameters with which many results are halfway between codes
    ("Add", ((0.0865, 91), (0.0865, 180), (0.0346, 188))),
    ("Mul", ((0.1, 197), (0.2, 94), (0.32, 3))),
    ("Mul", ((0.2, 69), (0.1, 13), (0.32, 84))),
)


def pairs(to: Cases) -> None:
    """Add and Mul, of equal shapes and with one operand repeated."""
    for op, ties in TIES:
        a, b, out = (params("uint8", *each) for each in ties)
        x, y = (to.feed(to.codes("uint8", PAIRS)) for _ in range(2))
        read = [x, *to.given(a), y, *to.given(b), *to.given(out)]
        to.case(op.lower(), (f"QLinear{op}", read, MS), "uint8", [x, y], [a, b, out])
    shapes = [((PAIRS,), (PAIRS,))] * 6 + [((PAIRS,), (1,)), ((1,), (PAIRS,))] * 3
    for index, shape in enumerate(shapes):
        kind = "int8" if index == 5 else "uint8"
        for op in ("Add", "Mul"):
            a, b, out = (to.params(kind) for _ in range(3))
            x, y = (to.feed(to.codes(kind, *each)) for each in shape)
            read = [x, *to.given(a), y, *to.given(b), *to.given(out)]
            to.case(op.lower(), (f"QLinear{op}", read, MS), kind, [x, y], [a, b, out])


def tables(to: Cases) -> None:
    for kind in ("uint8", "int8"):
        low = 0 if kind == "uint8" else -128
        every = to.feed(np.arange(low, low + 256).astype(kind).reshape(1, 1, 16, 16))
        for _ in range(3):
            x, out = to.params(kind), to.params(kind)
            read = [every, *to.given(x), *to.given(out)]
            to.case("sigmoid", ("QLinearSigmoid", read, MS), kind, [every], [x, out])
            slope = {"alpha": 0.125}
            node = ("QLinearLeakyRelu", read, MS)
            to.case("leaky_relu", node, kind, [every], [x, out], slope, **slope)
            read = [*to.given(out), every, *to.given(x)]
            node = ("QLinearConcat", read, MS)
            to.case("concat", node, kind, [every], [[x], out], {"axis": 1}, axis=1)
            floats = to.feed((to.rng.integers(-600, 600, 999) * x["scale"] / 2).astype(np.float32))
            to.case("quantize", ("QuantizeLinear", [floats, *to.given(x)], ""), kind, [floats], [x])


def functions(to: Cases) -> None:
    """In float32: codes tell the last bit of a function seldom."""
    values = to.feed(to.rng.normal(0, 3, 1007).astype(np.float32))
    nodes: dict[str, tuple[str, str, dict[str, Any]]] = {
        "tanh": ("Tanh", "", {}),
        "logistic": ("Sigmoid", "", {}),
        "silu": ("QuickGelu", MS, {"alpha": 1.0}),
        "gelu": ("Gelu", "", {}),
        "erf": ("Erf", "", {}),
        "hard_sigmoid": ("HardSigmoid", "", {"alpha": 0.3, "beta": 0.5}),
    }
    for name, (kind, domain, options) in nodes.items():
        node = (kind, [values], domain)
        to.case(f"function {name}", node, "float32", [values], [], options)


def pools(to: Cases) -> None:
    for _ in range(3):
        codes = to.feed(to.codes("uint8", 2, 9, 8, 7))
        x, out = to.params("uint8"), to.params("uint8")
        read = [codes, *to.given(x), *to.given(out)]
        node = ("QLinearGlobalAveragePool", read, MS)
        to.case("global_average_pool", node, "uint8", [codes], [x, out], {"channels_last": 0})
        sizes = {"pads": [1, 0, 0, 1]}
        options = {**sizes, "kernel_shape": [3, 2], "strides": [2, 1]}
        node = ("QLinearAveragePool", read, MS)
        own = {**sizes, "kernel": [3, 2], "stride": [2, 1]}
        to.case("average_pool", node, "uint8", [codes], [x, out], options, **own)
        fine = params("uint8", 1 / 256, 0)
        node = ("QLinearSoftmax", [codes, *to.given(x), *to.given(fine)], MS)
        to.case("softmax", node, "uint8", [codes], [x, fine], {"axis": -1, "opset": 13}, axis=-1)


CONVOLUTIONS: tuple[tuple[list[int], list[int], dict[str, Any]], ...] = (
    ([2, 3, 7, 6], [5, 3, 3, 3], {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    ([1, 8, 6, 5], [16, 8, 3, 3], {"pads": [1, 0, 0, 1]}),
    ([2, 7, 4, 4], [17, 7, 1, 1], {}),
    ([1, 10, 6, 6], [4, 5, 3, 2], {"group": 2, "dilations": [2, 1]}),
    ([1, 16, 7, 7], [16, 1, 3, 3], {"group": 16, "pads": [1, 1, 1, 1]}),
    ([1, 3, 6, 6], [6, 1, 3, 3], {"group": 3}),
    ([2, 5, 19], [6, 5, 4], {"strides": [2]}),
    ([1, 3, 5, 4, 5], [4, 3, 2, 2, 3], {}),
)


def weights(to: Cases, *shape: int) -> np.ndarray:
    """Many pairs of them saturate."""
    return np.clip(np.rint(to.rng.normal(0, 70, shape)), -127, 127).astype(np.int8)


def products(to: Cases) -> None:
    for shape, size, options in CONVOLUTIONS:
        codes, weight = to.feed(to.codes("uint8", *shape)), weights(to, *size)
        x = to.params("uint8", 0.01)
        w = params("int8", to.rng.uniform(0.001, 0.002, size[0]), 0, 0)
        out = to.params("uint8", 0.002 * float(np.sqrt(np.prod(size[1:]))))
        bias = to.rng.integers(-5000, 5000, size[0]).astype(np.int32)
        read = [codes, *to.given(x), to.const(weight), *to.given(w), *to.given(out)]
        node = ("QLinearConv", [*read, to.const(bias)], "")
        rank = len(shape) - 2
        own = {
            "stride": options.get("strides", [1] * rank),
            "pads": options.get("pads", [0] * 2 * rank),
            "dilation": options.get("dilations", [1] * rank),
            "groups": options.get("group", 1),
        }
        arrays = [{"array": to.keep(weight)}, {"array": to.keep(bias)}]
        to.case("conv", node, "uint8", [codes], [x, w, out, *arrays], options, **own)
    for rows, inputs, outputs in ((1, 64, 16), (1, 33, 5), (6, 100, 33), (17, 256, 20)):
        codes, weight = to.feed(to.codes("uint8", rows, inputs)), weights(to, outputs, inputs)
        x, w = to.params("uint8", 0.01), params("int8", 0.001, 0)
        read = [codes, *to.given(x), to.const(weight), *to.given(w)]
        options = {"transB": 1, "alpha": 1.0, "transA": 0}
        arrays = [{"array": to.keep(weight)}]
        node = ("QGemm", read, MS)
        to.case("linear", node, "float32", [codes], [x, w, None, *arrays], options)
    a, b, out = params("uint8", 0.01, 9), params("int8", 0.001, 2), params("uint8", 0.02, 110)
    left, right = to.feed(to.codes("uint8", 2, 5, 64)), to.feed(weights(to, 2, 64, 9))
    read = [left, *to.given(a), right, *to.given(b), *to.given(out)]
    to.case("matmul", ("QLinearMatMul", read, ""), "uint8", [left, right], [a, b, out])


GROUPS: tuple[Callable[[Cases], None], ...] = (pairs, tables, functions, pools, products)


def make(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    to = Cases()
    for group in GROUPS:
        group(to)
    to.save(folder)


def loaded(folder: Path, name: str = "inputs") -> dict[str, np.ndarray]:
    data = (folder / f"{name}.bin").read_bytes()
    return {
        name: np.frombuffer(data, kind, int(np.prod(shape)), offset).reshape(shape)
        for name, kind, shape, offset in json.loads((folder / f"{name}.json").read_text())
    }


def run(folder: Path, processor: str) -> None:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(str(folder / "model.onnx"), options, ["CPUExecutionProvider"])
    known = {i.name for i in session.get_inputs()}
    found = session.run(None, {n: a for n, a in loaded(folder).items() if n in known})
    names = [o.name for o in session.get_outputs()]
    np.savez(folder / f"{processor}.npz", **dict(zip(names, found, strict=True)))


def collect(folder: Path) -> None:
    arrays, names = {}, dict[tuple[str, tuple[int, ...], bytes], str]()

    def kept(value: np.ndarray) -> str:
        name = names.setdefault((str(value.dtype), value.shape, value.tobytes()), f"a{len(names)}")
        arrays[name] = value
        return name

    inputs = loaded(folder)
    results: dict[str, Any] = {p.stem: np.load(p) for p in sorted(folder.glob("*.npz"))}
    if (folder / "wasm.json").exists():
        results["wasm"] = loaded(folder, "wasm")
    cases = json.loads((folder / "cases.json").read_text())
    for case in cases:
        output = case.pop("output")
        case["inputs"] = [kept(inputs[name]) for name in case["inputs"]]
        for argument in case["args"]:
            if isinstance(argument, dict) and "array" in argument:
                argument["array"] = kept(inputs[argument["array"]])
        case["expected"] = {name: kept(found[output]) for name, found in results.items()}
    arrays["cases"] = np.frombuffer(json.dumps(cases, separators=(",", ":")).encode(), np.uint8)
    np.savez_compressed(HERE / "results.npz", **arrays)
    sys.stdout.write(f"{len(cases)} cases of {', '.join(results)}\n")


if __name__ == "__main__":
    command, place, *rest = sys.argv[1:]
    {"make": make, "run": run, "collect": collect}[command](Path(place), *rest)
