"""Integer kernels: the arithmetic of real runtimes, bit for bit, on torch tensors.

`profile("tflite")` or `profile("onnxruntime-x64")` gives a `Profile`; its `bind` takes an
operator key and everything static, and returns a function from code tensors to code tensors.
"""

from qtool.kernels.params import NO_BOUNDS, RELU, RELU6, RELU_N1_TO_1, Bounds, Kernel
from qtool.kernels.profiles import PROFILES, Binder, Profile, profile
from qtool.kernels.windows import same_pads

__all__ = [
    "NO_BOUNDS",
    "PROFILES",
    "RELU",
    "RELU6",
    "RELU_N1_TO_1",
    "Binder",
    "Bounds",
    "Kernel",
    "Profile",
    "profile",
    "same_pads",
]
