"""Numerics profiles: the named sets of kernels, one per runtime whose integers are reproduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from qtool.backends.kernels import codes
from qtool.backends.kernels.accumulate import (
    conv_accumulator,
    linear_accumulator,
    matmul_accumulator,
)
from qtool.backends.kernels.fma import fma32
from qtool.backends.kernels.params import Kernel
from qtool.backends.kernels.products import layer, product
from qtool.backends.onnxruntime.kernels import common as ort_common
from qtool.backends.onnxruntime.kernels import elementwise as ort_elementwise
from qtool.backends.onnxruntime.kernels import pool as ort_pool
from qtool.backends.onnxruntime.kernels.common import scale_sums
from qtool.backends.onnxruntime.kernels.functions import multiply_then_add
from qtool.core.errors import KernelError
from qtool.core.on_use import OnUse
from qtool.core.option_names import PROFILE_TITLES, describe_profile
from qtool.core.plugins import part, parts
from qtool.core.quant_params import QuantParams, torch_dtype
from qtool.core.remedies import CallEdit

Binder = Callable[..., Kernel]
"""Static parameters in, a bound kernel out."""


@dataclass(frozen=True)
class Profile:
    """A runtime's exact arithmetic on one family of processors: one binder per operator key.

    Attributes:
        name: what `profile` takes.
        binders: operator key -> binder.
        family: "onnxruntime" or "tflite"; profiles of one family differ in the processor only.
        signed: the runtime holds activations as int8; uint8 codes are read as int8.
        int8_as_uint8: the runtime turns int8 activations that have one reader into uint8.
        float_results: an integer product may return float32.
        saturates: pairs of products of uint8 and int8 are added with saturation in 16 bits.
    """

    name: str
    binders: Mapping[str, Binder] = field(repr=False)
    family: str = "onnxruntime"
    signed: bool = False
    int8_as_uint8: bool = False
    float_results: bool = False
    saturates: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "binders", MappingProxyType(dict(self.binders)))

    def __str__(self) -> str:
        return describe_profile(self.name)

    @property
    def title(self) -> str:
        """The runtime and the processors, in words."""
        return PROFILE_TITLES[self.name]

    @property
    def cpus(self) -> str:
        """The family of processors, in words."""
        return self.title.partition(" on ")[2]

    def bind(self, op: str, *args: Any, **kwargs: Any) -> Kernel:
        """Bind the kernel of `op` to its parameters.

        Raises KernelError for an operator the profile lacks, and for parameters that the
        runtime cannot represent.
        """
        try:
            binder = self.binders[op]
        except KeyError:
            raise KernelError(
                f"profile {self.name} has no kernel for {op!r}; it has: "
                f"{', '.join(sorted(self.binders))}",
                CallEdit("leave this operator in float"),
            ) from None
        return binder(*args, **kwargs)


def _on_use(where: str) -> OnUse:
    """Return a function of a kernel that few networks have, or of other processors."""
    return OnUse(f"qtool.backends.onnxruntime.kernels.{where}")


_ONNXRUNTIME: dict[str, Binder] = {
    "add": ort_elementwise.add,
    "average_pool": ort_pool.average_pool,
    "concat": ort_elementwise.concat,
    "conv": layer(conv_accumulator, scale_sums),
    "dequantize": ort_common.dequantize,
    "dynamic_lstm": _on_use("dynamic:dynamic_lstm"),
    "dynamic_matmul": _on_use("dynamic:dynamic_matmul"),
    "dynamic_quantize": _on_use("dynamic:dynamic_quantize"),
    "gather_nbits": _on_use("nbits:gather_nbits"),
    "gelu": _on_use("lookup_tables:gelu"),
    "global_average_pool": ort_pool.global_average_pool,
    "hard_swish": _on_use("lookup_tables:hard_swish"),
    "leaky_relu": _on_use("lookup_tables:leaky_relu"),
    "linear": layer(linear_accumulator, scale_sums),
    "matmul": product(matmul_accumulator, scale_sums),
    "matmul_integer": _on_use("dynamic:matmul_integer"),
    "matmul_nbits": _on_use("nbits:matmul_nbits"),
    "max_pool": ort_pool.max_pool,
    "mul": ort_elementwise.mul,
    "pad": codes.pad,
    "passthrough": codes.passthrough,
    "quantize": ort_common.quantize,
    "sigmoid": _on_use("lookup_tables:sigmoid"),
    "silu": _on_use("lookup_tables:silu"),
    "softmax": _on_use("softmax:softmax"),
    "tanh": _on_use("lookup_tables:tanh"),
}

_OTHERS: dict[str, Binder] = {  # without those that follow the order of sums of VNNI kernels
    key: binder
    for key, binder in _ONNXRUNTIME.items()
    if key not in ("dynamic_lstm", "matmul_nbits")
}
_AVX2: dict[str, Binder] = {
    **_OTHERS,
    "conv": layer(_on_use("avx2:conv_sums"), scale_sums),
    "dynamic_matmul": partial(_OTHERS["dynamic_matmul"], sums_of=_on_use("avx2:product_sums")),
    "linear": layer(_on_use("avx2:product_sums"), scale_sums),
    "matmul": product(_on_use("avx2:matmul_sums"), scale_sums),
    "matmul_integer": partial(_OTHERS["matmul_integer"], sums_of=_on_use("avx2:product_sums")),
}
_UNFUSED: dict[str, Binder] = {
    key: partial(_OTHERS[key], madd=multiply_then_add)
    for key in ("gelu", "sigmoid", "silu", "tanh")
}
_SSE41: dict[str, Binder] = {**_OTHERS, **_UNFUSED, "add": _on_use("other_cpus:sse_add")}
_NEON: dict[str, Binder] = {
    **_OTHERS,
    "hard_swish": partial(_OTHERS["hard_swish"], madd=fma32),
    "add": _on_use("other_cpus:neon_add"),
    "mul": _on_use("other_cpus:neon_mul"),
}
_WASM: dict[str, Binder] = {
    **_OTHERS,
    **_UNFUSED,
    "add": _on_use("other_cpus:generic_add"),
    "mul": _on_use("other_cpus:generic_mul"),
}


_onnxruntime = partial(Profile, family="onnxruntime", int8_as_uint8=True, float_results=True)

PROFILES: dict[str, Profile] = {
    p.name: p
    for p in (
        _onnxruntime("onnxruntime-x64", _ONNXRUNTIME),
        _onnxruntime("onnxruntime-avx2", _AVX2, saturates=True),
        _onnxruntime("onnxruntime-sse41", _SSE41),
        _onnxruntime("onnxruntime-neon", _NEON, int8_as_uint8=False),
        _onnxruntime("onnxruntime-wasm", _WASM),
    )
}
"""Those of ONNX Runtime; `profile` has those of plugins, too."""


def profile_names() -> list[str]:
    """Return the names of all profiles, sorted."""
    return sorted([*PROFILES, *parts("profiles")])


def profile(name: str) -> Profile:
    """Return a profile by name.

    Raises:
        InstallError: this installation lacks its plugin.
        KernelError: unknown name; the message lists the known ones.
    """
    if name in PROFILES:
        return PROFILES[name]
    if name not in PROFILE_TITLES:
        choose = CallEdit(f"choose one of {', '.join(profile_names())}")
        raise KernelError(f"unknown numerics profile {name!r}", choose)
    chosen: Profile = part("profiles", name)
    return chosen


# The results of a kernel for every code, or for every pair of codes: whether two profiles agree,
# without random inputs.


def codes_of_pairs(
    profile: Profile, key: str, a: QuantParams, b: QuantParams, out: QuantParams
) -> Tensor:
    """Return the results of "add" or "mul" for all pairs: [2, codes of a, codes of b].

    Both orders of the operands are computed, since the runtime exchanges them for some shapes.
    """
    left, right = _every_code(a), _every_code(b)
    rows = left.reshape(-1, 1).expand(-1, len(right)).contiguous()
    columns = right.expand(len(left), -1).contiguous()
    straight = profile.bind(key, a, b, out)(rows, columns)
    exchanged = profile.bind(key, b, a, out)(columns, rows)
    return torch.stack([straight, exchanged])


def codes_of_table(
    profile: Profile, key: str, x: QuantParams, out: QuantParams, **options: Any
) -> Tensor:
    """Return the results of an operator with one input for all codes: [codes of x]."""
    return profile.bind(key, x, out, **options)(_every_code(x))


def distinct(profiles: Iterable[Profile], key: str) -> list[Profile]:
    """Return one profile for each distinct kernel of `key`."""
    by_binder: dict[object, Profile] = {}
    for profile in profiles:
        by_binder.setdefault(profile.binders[key], profile)
    return list(by_binder.values())


def _every_code(params: QuantParams) -> Tensor:
    qtype = params.qtype
    return torch.arange(qtype.qmin, qtype.qmax + 1).to(torch_dtype(qtype))
