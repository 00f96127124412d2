"""Times Add and LayerNormalization in ONNX Runtime, fused to SkipLayerNormalization and apart.

    python benchmarks/layer_norms.py

Fused: the optimizer does so behind an Add. Apart: behind a Sum of the two, which qtool writes for
the versions where the fusion loses. Microseconds of thread CPU time for both nodes, the least of
7 rounds, one thread. Run it with each version of onnxruntime in question.
"""

from __future__ import annotations

import time

import numpy as np
import onnx
import onnxruntime as ort
from measured import session
from onnx import parser

SHAPES = ((1, 1, 768), (1, 16, 64), (1, 52, 64), (1, 16, 768), (1, 128, 384), (1, 128, 768))
NODES, RUNS, ROUNDS = 6, 60, 7


def chain(addition: str, shape: tuple[int, ...]) -> onnx.ModelProto:
    """Return a model of additions and layer norms in turn."""
    size = ", ".join(map(str, shape))
    nodes, last = "", "x"
    for i in range(NODES):
        nodes += f"a{i} = {addition} ({last}, y)\nn{i} = LayerNormalization (a{i}, g, b)\n"
        last = f"n{i}"
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[{size}] x, float[{size}] y) => (float[{size}] {last}) {{ {nodes} }}"""
    model = parser.parse_model(text)
    for name, value in (("g", 1), ("b", 0)):
        array = np.full(shape[-1], value, np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def microseconds(model: onnx.ModelProto, shape: tuple[int, ...]) -> float:
    """Return the least time of one addition and one layer norm."""
    runtime = session(model.SerializeToString())
    random = np.random.default_rng(0)
    feeds = {n: random.standard_normal(shape).astype(np.float32) for n in "xy"}
    rounds = []
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(RUNS):
            runtime.run(None, feeds)
        rounds.append(time.thread_time() - start)
    return 1e6 * min(rounds) / RUNS / NODES


def main() -> None:
    print(f"onnxruntime {ort.__version__}\n")
    print("| shape | fused | apart | ratio |\n|---|---|---|---|")
    for shape in SHAPES:
        fused, apart = (microseconds(chain(a, shape), shape) for a in ("Add", "Sum"))
        print(f"| {list(shape)} | {fused:.1f} | {apart:.1f} | {fused / apart:.2f} |")


if __name__ == "__main__":
    main()
