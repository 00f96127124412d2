"""Quantization schemes of layers.

A recipe requests a scheme, a target's kernel offers several; both are values of one type. A field
that is None matches anything: the first offered scheme that equals the request in all its other
fields is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from qtool.core.types import (
    INT2,
    INT4,
    INT8,
    INT8_NARROW,
    INT16,
    UINT2,
    UINT4,
    UINT8,
    UINT16,
    QType,
)


class When(Enum):
    """When a layer's activations are quantized."""

    STATIC = "static"  # with the range of the calibration
    DYNAMIC = "dynamic"  # in each run, with the range of that batch
    NEVER = "weights only"
    FLOAT = "float"  # neither activations nor weights


class Scales(Enum):
    """Which weights share a scale."""

    TENSOR = "tensor"
    CHANNEL = "channel"  # those of one output channel


@dataclass(frozen=True)
class Scheme:
    """How a layer is quantized; None: anything.

    Attributes:
        when: when activations are quantized.
        activations: type of inputs and result.
        weights: type of the weights.
        scales: per tensor, per channel, or the length of blocks along the input axis.
    """

    when: When = When.STATIC
    activations: QType | None = None
    weights: QType | None = None
    scales: Scales | int | None = None

    def with_defaults(self, activations: QType, weights: QType) -> Scheme:
        """Return the scheme with these types, and a scale per channel, for fields that are None."""
        return Scheme(
            self.when,
            self.activations or activations,
            self.weights or weights,
            self.scales or Scales.CHANNEL,
        )

    def first_match(self, offered: Iterable[Scheme]) -> Scheme | None:
        """Return the first offered scheme that matches; None without one."""
        return next((s for s in offered if self.when is s.when and self._matches(s)), None)

    def _matches(self, offered: Scheme) -> bool:
        requested = (self.activations, self.weights, self.scales)
        values = (offered.activations, offered.weights, offered.scales)
        return all(r is None or r == v for r, v in zip(requested, values, strict=True))

    @property
    def activations_only(self) -> Scheme:
        """The scheme for an operator without weights: only the type of activations."""
        return Scheme(activations=self.activations)

    def __str__(self) -> str:
        known = next((name for name, s in SCHEMES.items() if s == self), None)
        if known is not None:
            return known
        words = [] if self.when is When.STATIC else [self.when.value]
        words += [] if self.activations is None else [f"{self.activations} activations"]
        words += [] if self.weights is None else [f"{self.weights} weights"]
        if isinstance(self.scales, int):
            words.append(f"a scale for each {self.scales} weights")
        elif self.scales is not None:
            words.append(f"a scale for each {self.scales.value}")
        return ", ".join(words)


SCHEMES: Mapping[str, Scheme] = MappingProxyType(
    {
        "float": Scheme(When.FLOAT),
        "static": Scheme(),
        "dynamic": Scheme(When.DYNAMIC),
        "int8-weights": Scheme(When.NEVER),
        "int4-weights": Scheme(When.NEVER, weights=UINT4, scales=32),
        "int2-weights": Scheme(When.NEVER, weights=UINT2, scales=32),
    }
)
"""Schemes with a name: values of `as` in a recipe."""

ACTIVATIONS: Mapping[str, QType] = MappingProxyType(
    {t.name: t for t in (UINT8, INT8, UINT16, INT16)}
)
WEIGHTS: Mapping[str, QType] = MappingProxyType(
    {
        "int8": INT8_NARROW,
        "int4": INT4,
        "int2": INT2,
        "uint8": UINT8,
        "uint4": UINT4,
        "uint2": UINT2,
    }
)
"""Types of weights by their names in recipes; signed ones are symmetric."""

BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Numbers of weights that may share a scale in blocks."""

KERNEL_BLOCKS: Mapping[int, tuple[int, ...]] = MappingProxyType(
    {2: (32, 64, 128), 4: BLOCK_SIZES, 8: BLOCK_SIZES}
)
"""Bits of the weights -> block lengths that ONNX Runtime has kernels on int8 inputs for; with
others it computes in float, slowly."""

_LONGEST_CHANNEL_BLOCK = 128


def channel_block(features: int, bits: int) -> int:
    """Return the length of blocks that repeat the scale of a channel, for kernels of blocks alone.

    Args:
        features: inputs of the layer.
        bits: bit width of its weights.
    """
    fitting = (b for b in KERNEL_BLOCKS[bits] if features <= b <= _LONGEST_CHANNEL_BLOCK)
    return next(fitting, _LONGEST_CHANNEL_BLOCK)
