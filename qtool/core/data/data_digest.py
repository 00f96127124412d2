"""A digest of calibration data that does not depend on order, batch size or number of processes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qtool.core.data.calibration_samples import content_hash, samples_of

_MODULUS = 1 << 128


class DataDigest:
    """The sum of the hashes of all samples, so that parts of the data are merged by adding."""

    def __init__(self) -> None:
        self._sum = 0

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        """Add one batch: tensors in the order of the model's inputs.

        A batch is split into samples if all tensors have the same first size.
        """
        split = len({t.shape[:1] for t in tensors}) == 1 and tensors[0].dim() > 0
        for row in samples_of(tensors, split):
            self._sum += int(content_hash(row), 16)

    def text(self) -> str:
        """Return 32 hexadecimal digits."""
        return f"{self._sum % _MODULUS:032x}"


def merged_digest(one: str, other: str) -> str:
    """Return the digest of the data of both; "" if one of them is unknown."""
    if not one or not other:
        return ""
    return f"{(int(one, 16) + int(other, 16)) % _MODULUS:032x}"
