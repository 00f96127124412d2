"""Operators without a reader: kept, run by the runtime, planned as float, written back."""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from qtool.api.conversion import quantize
from qtool.backends.onnx.export import float_onnx
from qtool.backends.onnx.subgraph import OnnxSubgraph, onnx_part, subgraph_of
from qtool.core import graph as G
from qtool.core.data import Batch
from qtool.core.errors import CaptureError
from qtool.frontends.captured_model import capture_model
from qtool.frontends.onnx.onnx_module import OnnxModule
from qtool.frontends.onnx.runtime_parts import group_nodes
from tests.backends.onnx.export.networks import run
from tests.frontends.onnx.files import behind_conv, images, loaded

LAST = "y0 = Conv <pads = [1, 1, 1, 1]> (r, w2, b)"
THREE = "k = Constant <value_ints = [3]> ()"
KEPT = {  # text -> the operators that the float file has behind the first layer
    "several results": (f"{THREE} v, y0 = TopK <axis = -1> (h, k)", ["TopK"]),
    "another domain": (
        f"""t = Transpose <perm = [0, 2, 3, 1]> (h) g = com.microsoft.BiasGelu (t, b)
        r = Transpose <perm = [0, 3, 1, 2]> (g) {LAST}""",
        ["Transpose", "BiasGelu", "Transpose", "Conv"],
    ),
    "a branch": (
        f"""s = ReduceSum <keepdims = 0> (h) s2 = Neg (s) c = Greater (s, s2)
        r = If (c) <then_branch = yes () => (float[N,4,8,8] t) {{ t = Mul (h, s) }},
            else_branch = no () => (float[N,4,8,8] e) {{ e = Conv <pads = [1,1,1,1]> (h, w2, b) }}>
        {LAST}""",
        ["ReduceSum", "Neg", "Greater", "If", "Conv"],
    ),
    "a branch that states another rank than it has": (
        f"""s = ReduceSum <keepdims = 0> (h) s2 = Neg (s) c = Greater (s, s2)
        r = If (c) <then_branch = yes () => (float t) {{ t = Mul (h, s) }},
            else_branch = no () => (float e) {{ e = Relu (h) }}> {LAST}""",
        ["ReduceSum", "Neg", "Greater", "If", "Conv"],
    ),
    "a loop over what lies outside": (
        f"""n = Constant <value_int = 3> () c = Constant <value = bool {{1}}> ()
        s = ReduceMean <keepdims = 0> (h)
        r = Loop (n, c, h) <body = step (int64 i, bool ci, float[N,4,8,8] a)
            => (bool co, float[N,4,8,8] o) {{ co = Identity (ci) t = Mul (a, s) o = Add (t, h) }}>
        {LAST}""",
        ["ReduceMean", "Loop", "Conv"],
    ),
    "sequences": (
        f"""zero = Constant <value_ints = [0]> () ones = Constant <value_ints = [1]> ()
        one = Constant <value_int = 1> () s = SplitToSequence <axis = 1> (h)
        q = SequenceErase (s, one) r0 = ConcatFromSequence <axis = 1> (q)
        r1 = Slice (h, zero, ones, ones) r = Concat <axis = 1> (r0, r1) {LAST}""",
        ["SplitToSequence", "SequenceErase", "ConcatFromSequence", "Slice", "Concat", "Conv"],
    ),
    "text": (f"a = Cast <to = 8> (h) r = Cast <to = 1> (a) {LAST}", ["Cast", "Cast", "Conv"]),
    "sizes that the values decide": (
        """half = Constant <value_float = 0.5> () g = Greater (h, half) z = NonZero (g)
        t = Transpose (z) y0 = GatherND (h, t)""",
        ["Greater", "NonZero", "Transpose", "GatherND"],
    ),
}


@pytest.mark.parametrize("name", list(KEPT))
def test_what_is_kept_is_the_same_in_the_float_file_and_in_the_int8_one(
    name: str, tmp_path: Path
) -> None:
    text, operators = KEPT[name]
    model = behind_conv(text)
    captured = capture_model(loaded(model, tmp_path), images(2))
    other = images(5)
    expected = run(model, (other,), optimise=False)
    written = float_onnx(captured.graph)
    found = Counter(n.op_type for n in written.graph.node)
    assert found >= Counter(operators) - Counter(["Slice", "SequenceErase", "SplitToSequence"])
    for a, b in zip(run(written, (other,), optimise=False), expected, strict=True):
        np.testing.assert_array_equal(a, b)
    verified = quantize(captured, [images(2)], accuracy="fast").verify()
    assert verified.passed
    assert verified.exactness.exact


def test_the_plan_says_what_is_kept(tmp_path: Path) -> None:
    text = f"{THREE} y0, i = TopK <axis = -1> (h, k)"
    plan = capture_model(loaded(behind_conv(text), tmp_path), images()).plan()
    decision = next(d for d in plan.nodes if d.op == "TopK")
    assert (decision.node, decision.reason) == ("TopK2", "kept unchanged from the file")
    assert not decision.computes_on_codes


def test_sizes_of_what_is_kept_stay_dynamic(tmp_path: Path) -> None:
    text = f"{THREE} v, i = TopK <axis = 1> (h, k) y0 = Flatten <axis = 3> (v)"
    captured = capture_model(loaded(behind_conv(text), tmp_path), images())
    kept = next(n for n in G.calls(captured.graph.graph) if n.target is onnx_part)
    assert [str(s) for s in G.value(kept)[0].shape[1:]] == ["3", "8", "8"]
    assert not isinstance(G.value(kept)[0].shape[0], int)


def test_an_unknown_attribute_is_kept_and_not_ignored() -> None:
    model = behind_conv("a = Constant <value_int = 1> () y0 = CumSum <reverse = 1> (h, a)")
    found = OnnxModule(model).eval()
    x = images()
    assert found.observe([x])["y0"].shape == (2, 4, 8, 8)
    assert [found.nodes[i].key for i in found.fallback] == ["CumSum"]
    (expected,) = run(model, (x,), optimise=False)
    np.testing.assert_allclose(found(x).detach().numpy(), expected, rtol=1e-5, atol=1e-5)


def test_a_size_from_data_is_kept(tmp_path: Path) -> None:
    text = """m = ReduceMax <keepdims = 0> (h) a = Abs (m) c = Ceil (a) i = Cast <to = 7> (c)
        z = Constant <value_ints = [0]> () u = Unsqueeze (i, z) one = Constant <value_ints = [1]> ()
        n = Concat <axis = 0> (one, one, u, one) y0 = Tile (h, n)"""
    model = behind_conv(text)
    captured = capture_model(loaded(model, tmp_path), images())
    (expected,) = run(model, (images(3),), optimise=False)
    assert captured.graph.module(images(3)).shape == expected.shape


def test_a_size_from_data_that_is_one_is_not_taken_for_what_it_is_spread_to(tmp_path: Path) -> None:
    text = """m = ReduceMax <keepdims = 0> (h) a = Abs (m) one = Constant <value_ints = [1]> ()
        i = Cast <to = 7> (a) l = Min (i, one) u = Max (l, one)
        z = Constant <value_ints = [0]> () s = Slice (h, z, u, one) y0 = Mul (h, s)"""
    with pytest.raises(
        CaptureError, match=r"^Slice\d+ has the shape \[2, 1, 8, 8\] on the example"
    ):
        capture_model(loaded(behind_conv(text), tmp_path), images())


def test_the_text_of_a_part_is_the_same_for_the_same_nodes(tmp_path: Path) -> None:
    text, _ = KEPT["several results"]
    texts = []
    for count in (2, 3):
        captured = capture_model(loaded(behind_conv(text), tmp_path), images(count))
        (node,) = [n for n in G.calls(captured.graph.graph) if n.target is onnx_part]
        texts.append(str(node.args[1]))
    assert texts[0] == texts[1]
    assert subgraph_of(texts[0]).outputs == ((torch.int64, 4),)


def test_sizes_are_asked_of_the_runtime_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[N] x) => (int64[M] y) {
        z = NonZero (x) s = Constant <value_ints = [-1]> () y = Reshape (z, s) }"""
    part, runs = OnnxSubgraph(onnx.parser.parse_model(text)), list[int]()
    run = OnnxSubgraph.run

    def counted(self: OnnxSubgraph, arrays: list[np.ndarray]) -> list[np.ndarray]:
        runs.append(len(arrays[0]))
        return run(self, arrays)

    monkeypatch.setattr(OnnxSubgraph, "run", counted)
    inputs = [(onnx.TensorProto.FLOAT, (4,))]
    assert part.sizes(inputs) == part.sizes(inputs) == [(None,)]  # depends on the values
    assert runs == [4, 4, 4]  # zeros, ones and numbers between


def test_nodes_between_two_that_are_joined_go_with_them() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]> g (float[4] x) => (float[4] y) {
        s = SequenceConstruct (x) a = Relu (x) n = SequenceLength (s) c = Cast <to = 1> (n)
        t = SequenceInsert (s, c) y = ConcatFromSequence <axis = 0> (t) b = Abs (a) }"""
    nodes = list(onnx.parser.parse_model(text).graph.node)
    groups = [[n.op_type for n in g] for g in group_nodes(nodes, frozenset({"s", "t"}))]
    joined = ["SequenceConstruct", "SequenceLength", "Cast", "SequenceInsert", "ConcatFromSequence"]
    assert groups == [joined, ["Relu"], ["Abs"]]


def _steps(first: bool) -> onnx.ModelProto:
    """A recurrent layer as tf2onnx writes Keras's: a Loop over the time, which Shape counts."""
    text = """<ir_version: 8, opset_import: ["" : 15]>
    g (float[B,L,4] x) => (float[L,B,4] ys, float[B,2] y) {
        i0 = Constant <value_int = 0> () v0 = Constant <value_ints = [0]> ()
        v1 = Constant <value_ints = [1]> () four = Constant <value_ints = [4]> ()
        f0 = Constant <value_float = 0.0> () f1 = Constant <value_float = 1.0> ()
        seq = Transpose <perm = [1, 0, 2]> (x)
        sizes = Shape (seq) steps = Gather (sizes, i0) count = Cast <to = 1> (steps)
        any = Less (f0, count) batch = Gather (sizes, v1) zs = Concat <axis = 0> (batch, four)
        z = Expand (f0, zs)
        tl, sl, ys = Loop (, any, f0, z) <body = step (int64 i, bool c, float t, float[B,4] s)
            => (bool go, float t2, float[B,4] s2, float[B,4] out) {
                xt = Gather (seq, i) a = MatMul (xt, w) b = MatMul (s, u) d = Add (a, b)
                s2 = Tanh (d) out = Identity (s2) t2 = Add (t, f1) go = Less (t2, count) }>
        row = Slice (ys, v0, v1, v0) one = Squeeze (row, v0) gates = MatMul (one, k)
        g0, g1 = Split <axis = 1> (gates) y = Mul (g0, g1)
    }"""
    model = onnx.parser.parse_model(text)
    draw = np.random.default_rng(0)
    for name in "wuk":
        model.graph.initializer.append(
            onnx.numpy_helper.from_array(draw.normal(size=(4, 4)).astype(np.float32) / 2, name)
        )
    if not first:
        del model.graph.output[1]
    return model


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("first", [True, False], ids=["first step", "all steps"])
def test_a_loop_runs_as_often_as_a_size_says(first: bool, samples: int, tmp_path: Path) -> None:
    """Its part computes the count itself, so that the sizes of its results follow."""
    model = _steps(first)
    captured = capture_model(loaded(model, tmp_path), Batch((torch.randn(samples, 6, 4),)))
    assert captured.graph.inputs[0].shape == ("B", "L", 4)
    written = float_onnx(captured.graph)
    for shape in ((1, 3, 4), (5, 9, 4)):
        x = torch.randn(shape)
        results = zip(run(written, (x,)), run(model, (x,)), strict=True)
        for actual, expected in results:
            np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_texts_of_a_packed_sequence_keep_their_batch_dynamic(tmp_path: Path) -> None:
    """As torch.onnx writes pack_padded_sequence: the texts are ordered by their lengths, as many as
    ReduceProd counts."""
    text = """<ir_version: 8, opset_import: ["" : 16]>
    g (float[B,L,4] x, int64[B] n) => (float[B,L,4] y) {
        s = Shape (n) last = Constant <value_ints = [-1]> () k = Gather (s, last)
        ordered, places = TopK <axis = -1> (n, k) sorted = Gather <axis = 0> (x, places)
        p = Shape (places) count = ReduceProd <keepdims = 0> (p)
        i0 = Constant <value_int = 0> () i1 = Constant <value_int = 1> ()
        range = Range (i0, count, i1) zero = ConstantOfShape <value = int64[1] {0}> (p)
        back = ScatterElements <axis = 0> (zero, places, range) z = MatMul (sorted, w)
        y = Gather <axis = 0> (z, back)
    }"""
    model = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    batch = Batch((torch.randn(3, 6, 4), torch.tensor([4, 6, 2])))
    captured = capture_model(loaded(model, tmp_path), batch)
    assert [i.shape for i in captured.graph.inputs] == [("B", "L", 4), ("B",)]
    written = float_onnx(captured.graph)
    for samples in (1, 5):
        x, n = torch.randn(samples, 8, 4), torch.randperm(samples) + 1
        (actual,) = run(written, (x, n))
        np.testing.assert_allclose(actual, x.numpy() @ weight, atol=1e-5)


def test_sizes_that_an_operator_does_not_take_are_said(tmp_path: Path) -> None:
    """The second slice of one row is empty, and no operator joins it with the first."""
    text = """<ir_version: 9, opset_import: ["" : 17]> g (float[N,4] x) => (float[M,8] y)
        <int64 i = {0}, int64 one = {1}, int64[1] z = {0}, int64[1] u = {1}> {
        s = Shape (x) n = Gather (s, i) m = Sub (n, one) g0 = Max (m, one)
        e0 = Unsqueeze (g0, z) e1 = Add (e0, u) s0 = Slice (x, z, e0, z) s1 = Slice (x, u, e1, z)
        y = Concat <axis = 1> (s0, s1) }"""
    model = loaded(onnx.parser.parse_model(text), tmp_path)
    assert capture_model(model, torch.ones(3, 4)).graph.module(torch.ones(5, 4)).shape == (4, 8)
    with pytest.raises(CaptureError, match=r"cannot run y \(Concat\).*\[1, 4\].*of other sizes"):
        capture_model(model, torch.ones(1, 4))


def test_a_scan_over_no_steps_is_not_run() -> None:
    """ONNX Runtime 1.32 divides by the number of steps, which ends the process."""
    text = """<ir_version: 8, opset_import: ["" : 17]> scan (float[N] s, float[N,T] x)
        => (float[N] e, float[N,T] y) {
        e, y = Scan <num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1],
            body = step (float[N] a, float[N] c) => (float[N] d, float[N] f) {
                d = Add(a, c) f = Identity(d) }> (s, x) }"""
    part = OnnxSubgraph(onnx.parser.parse_model(text))
    state = np.zeros(3, np.float32)
    assert [a.shape for a in part.run([state, np.ones((3, 2), np.float32)])] == [(3,), (3, 2)]
    with pytest.raises(CaptureError, match="scans an empty sequence"):
        part.run([state, np.ones((3, 0), np.float32)])
