"""Inputs of a file that become constants: a sampling rate, a flag, a number of tokens.

What depends on them alone is folded, so that an If on one of them becomes the nodes of one branch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from qtool.backends.onnx.subgraph import tensor_of
from qtool.core.data.fixed_inputs import FixedInputs
from qtool.core.errors import CaptureError
from qtool.frontends.onnx.node_calls import Array

_INITIALIZERS_ARE_INPUTS = 3  # up to this version of the format


def fix_inputs(model: onnx.ModelProto, values: Mapping[str, Any]) -> FixedInputs:
    """Turn inputs of a file into constants, in place; return these.

    Args:
        model: the file.
        values: input -> a number, or an array that broadcasts to its shape; an open dimension has
            the array's size, or 1.

    Raises:
        CaptureError: there is no such input, or the value has another type or shape.
    """
    stored = {i.name for i in model.graph.initializer}
    inputs = {i.name: i for i in model.graph.input if i.name not in stored}
    fixed: dict[str, Array] = {}
    for name, value in values.items():
        if name not in inputs:
            raise CaptureError(
                f"there is no input '{name}' to fix; the inputs are {', '.join(inputs)}"
            )
        fixed[name] = _constant(name, inputs[name].type.tensor_type, value)
        model.graph.initializer.append(numpy_helper.from_array(fixed[name], name))
        if model.ir_version > _INITIALIZERS_ARE_INPUTS:
            model.graph.input.remove(inputs[name])
    return FixedInputs({n: tensor_of(a) for n, a in fixed.items()}, tuple(inputs))


def _constant(name: str, kind: Any, value: Any) -> Array:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    array = np.asarray(value)
    whole = dtype.kind in "biu"  # a fraction is rounded to the float type of the input
    if array.dtype.kind not in "biuf" or (whole and not np.array_equal(array.astype(dtype), array)):
        raise CaptureError(f"input '{name}' is {dtype}, which cannot be {value!r}")
    dims = kind.shape.dim
    sizes = [max(0, d.dim_value) for d in dims]
    own = (1,) * (len(sizes) - array.ndim) + array.shape
    wanted = [size or other for size, other in zip(sizes, own, strict=False)]
    try:
        shaped = np.broadcast_to(array, wanted if kind.HasField("shape") else array.shape)
    except ValueError as error:
        raise CaptureError(
            f"input '{name}' has the shape {wanted}, the value to fix it to {list(array.shape)}"
        ) from error
    return np.array(shaped, dtype)
