"""The parameters of a quantized tensor of a file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorParameters:
    """One quantized tensor: its integer type, scales and zero points."""

    tensor: str
    dtype: str
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]

    def row(self) -> tuple[str, str, str, str]:
        return self.tensor, self.dtype, _summary(self.scales), _summary(self.zero_points)


def _summary(values: tuple[float, ...]) -> str:
    if len(values) == 1:
        return f"{values[0]:.6g}"
    low, high = min(values), max(values)
    return (
        f"{low:.6g} ({len(values)})" if low == high else f"{low:.4g} .. {high:.4g} ({len(values)})"
    )
