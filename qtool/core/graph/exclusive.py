"""Functions that run while no other thread traces a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from qtool.core.process_lock import PROCESS_LOCK

P = ParamSpec("P")
R = TypeVar("R")


def exclusive(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to run under PROCESS_LOCK, and outside of the caller's inference mode, in
    which torch neither traces nor counts changes of tensors."""

    @wraps(function)
    def locked(*args: P.args, **kwargs: P.kwargs) -> R:
        with PROCESS_LOCK, torch.inference_mode(False):
            return function(*args, **kwargs)

    return locked
