"""An exported file with another value in one of its tensors."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import numpy_helper

from tests.backends.onnx.export.networks import exported


def corrupt(part: str, change: Callable[[np.ndarray], np.ndarray]) -> onnx.ModelProto:
    file = onnx.load_from_string(exported("linear"))
    (tensor,) = (i for i in file.graph.initializer if i.name == part)
    array = change(numpy_helper.to_array(tensor))
    tensor.CopyFrom(numpy_helper.from_array(array, part))
    return file
