"""Which numerics profile ONNX Runtime has on this processor, found by running it.

A model of two nodes is run once per process. Its product saturates where pairs of products are
added in 16 bits, and its addition has results halfway between two codes, which the kernels of each
processor family round differently. Flags of the processor are not read: emulators and virtual
machines report wrong ones, and the runtime decides by more than flags.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from qtool.backends.onnxruntime.session import cpu_session
from qtool.core.types import INT8, UINT8, Array

DEFAULT_PROFILE = "onnxruntime-x64"
"""Assumed where no profile returns the results of the runtime."""

_ADD = ((0.0865, 91), (0.0865, 180), (0.0346, 188))
"""Scale and zero point of the operands and of the result: ratios of 5/2 make halves."""


_RESULTS = {
    "8e5450bd5cade4ec": "onnxruntime-x64",
    "1fd34d1b6caa926a": "onnxruntime-avx2",
    "cd243066b1da134c": "onnxruntime-sse41",
    "b33f3d6586f7b9f9": "onnxruntime-neon",
    "e397372eeb415cb1": "onnxruntime-wasm",
}
"""Digest of the results of the model -> the profile whose kernels give them."""
SATURATING = ("onnxruntime-avx2",)
"""Profiles that add pairs of products of uint8 and int8 codes with saturation."""


@cache
def machine_profile() -> str:
    """Return the name of the numerics profile of ONNX Runtime on this CPU."""
    return _RESULTS.get(digest_of(*_run_probe()), DEFAULT_PROFILE)


def digest_of(product: Array, total: Array) -> str:
    """Return a digest of the product (int32) and the sum (uint8), 16 hexadecimal digits."""
    data = product.astype("<i4").tobytes() + total.tobytes()
    return hashlib.sha256(data).hexdigest()[:16]


_CODES = np.full((2, 8), UINT8.qmax, np.uint8)
_WEIGHT = np.full((8, 16), INT8.qmax, np.int8)
_PAIRS = tuple(np.divmod(np.arange(1 << 16), 256)[i].astype(np.uint8) for i in (0, 1))


def _run_probe() -> Sequence[Array]:
    """Run the model in ONNX Runtime and return the product and the sum."""
    inputs = {"x": _CODES, "a": _PAIRS[0], "b": _PAIRS[1]}
    stored = {"w": _WEIGHT}
    for name, (scale, zero) in zip("abc", _ADD, strict=True):
        stored |= {f"{name}s": np.array(scale, np.float32), f"{name}z": np.array(zero, np.uint8)}
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w"], ["product"]),
        helper.make_node(
            "QLinearAdd",
            ["a", "as", "az", "b", "bs", "bz", "cs", "cz"],
            ["total"],
            domain="com.microsoft",
        ),
    ]
    graph = helper.make_graph(
        nodes,
        "cpu",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ],
        [
            helper.make_tensor_value_info("product", TensorProto.INT32, None),
            helper.make_tensor_value_info("total", TensorProto.UINT8, None),
        ],
        [numpy_helper.from_array(a, n) for n, a in stored.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = cpu_session(model.SerializeToString())
    outputs: Sequence[Array] = session.run(["product", "total"], inputs)
    return outputs
