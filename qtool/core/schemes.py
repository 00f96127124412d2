"""Schemes: how a layer is quantized, as data.

What is asked for (by a recipe) and what is offered (by a kernel of a target) are values of one
type. A field that is None says nothing: the first scheme of a kernel that says otherwise in no
field of what was asked for is the one that is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from qtool.core.types import INT4, INT8, INT8_NARROW, INT16, UINT4, UINT8, UINT16, QType


class When(Enum):
    """When a layer's activations are quantized."""

    STATIC = "static"  # always, with the range that calibration saw
    DYNAMIC = "dynamic"  # in each run, with the range of that batch
    NEVER = "weights only"
    FLOAT = "float"  # never, and its weights neither


class Scales(Enum):
    """Which weights share a scale."""

    TENSOR = "tensor"
    CHANNEL = "channel"  # those of one output


@dataclass(frozen=True)
class Scheme:
    """How a layer is quantized; None where nothing is said.

    activations: the type of its inputs and of its result.
    weights: the type of its weights.
    scales: which weights share a scale; a number: so many in a row along the inputs of an output.
    """

    when: When = When.STATIC
    activations: QType | None = None
    weights: QType | None = None
    scales: Scales | int | None = None

    def with_defaults(self, activations: QType, weights: QType) -> Scheme:
        """With everything said: these types, a scale for each channel."""
        return Scheme(
            self.when,
            self.activations or activations,
            self.weights or weights,
            self.scales or Scales.CHANNEL,
        )

    def first_match(self, offered: Iterable[Scheme]) -> Scheme | None:
        """The first of the offered schemes that fits what is said here; None without one."""
        return next((s for s in offered if self.when is s.when and self._fits(s)), None)

    def _fits(self, offered: Scheme) -> bool:
        asked = (self.activations, self.weights, self.scales)
        given = (offered.activations, offered.weights, offered.scales)
        return all(a is None or a == g for a, g in zip(asked, given, strict=True))

    @property
    def activations_only(self) -> Scheme:
        """What it says to an operator without weights, which nothing but the type concerns."""
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
    }
)
"""Those that have a name: what `as` in a recipe says."""

ACTIVATIONS: Mapping[str, QType] = MappingProxyType(
    {t.name: t for t in (UINT8, INT8, UINT16, INT16)}
)
WEIGHTS: Mapping[str, QType] = MappingProxyType(
    {"int8": INT8_NARROW, "int4": INT4, "uint4": UINT4, "uint8": UINT8}
)
"""Types of weights by the names that a recipe gives them; the signed ones are symmetric."""

BLOCK_SIZES = (16, 32, 64, 128, 256)
"""How many weights may share a scale, where not all of an output do."""
