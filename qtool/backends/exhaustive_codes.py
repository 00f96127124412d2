"""The results of a profile's kernel for every code, or for every pair of codes.

They show whether two profiles agree, without random inputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from qtool.backends.profiles import Profile
from qtool.core.quant_params import QuantParams, torch_dtype


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
    codes: Tensor = profile.bind(key, x, out, **options)(_every_code(x))
    return codes


def distinct(profiles: Iterable[Profile], key: str) -> list[Profile]:
    """Return one profile for each distinct kernel of `key`."""
    by_binder: dict[object, Profile] = {}
    for profile in profiles:
        by_binder.setdefault(profile.binders[key], profile)
    return list(by_binder.values())


def _every_code(params: QuantParams) -> Tensor:
    qtype = params.qtype
    return torch.arange(qtype.qmin, qtype.qmax + 1).to(torch_dtype(qtype))
