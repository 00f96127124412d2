"""Rewrites of exported graphs that avoid defects of a runtime, one per module.

docs/upstream.md has a model that shows each defect.
"""

from qtool.backends.onnx.export.workarounds.matrix_vector_products import MATRIX_VECTOR_PRODUCTS
from qtool.backends.onnx.export.workarounds.max_pool_pads import MAX_POOL_PADS
from qtool.backends.onnx.export.workarounds.pool_ceil_mode import POOL_CEIL_MODE
from qtool.backends.onnx.export.workarounds.skip_layer_norms import SKIP_LAYER_NORMS

ONNX_WORKAROUNDS = (POOL_CEIL_MODE, MAX_POOL_PADS, MATRIX_VECTOR_PRODUCTS, SKIP_LAYER_NORMS)
"""For every ONNX file: whatever it is for, onnx checks it and ONNX Runtime runs it. A runtime has
those of its own in `Runtime.workarounds`."""

__all__ = ["ONNX_WORKAROUNDS"]
