"""Numbers that a model stores and reads as Python numbers: a shift, a temperature, a flag.

torch.export takes the values of buffers and parameters as unknown, so that `int(self.shift)` or
`if self.ready` cannot be traced. An inference model does not change them: a stored tensor of one
element is a constant of the trace, as one that the model creates is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any
from unittest import mock

from torch import nn
from torch.export import _trace


@contextmanager
def stored_numbers() -> Iterator[None]:
    """Let torch.export compute with the values of stored tensors of one element."""
    fakes_of = _trace._fakify_params_buffers  # type: ignore[attr-defined]  # imported there

    def with_values(mode: Any, module: nn.Module) -> dict[str, Any]:
        fakes: dict[str, Any] = fakes_of(mode, module)
        stored = chain(
            module.named_parameters(remove_duplicate=False),
            module.named_buffers(remove_duplicate=False),
        )
        for name, tensor in stored:
            if tensor.numel() == 1 and name in fakes:
                fakes[name].constant = tensor.detach().clone()
                mode.fake_tensor_converter.add_constant_storage_mapping(fakes[name])
        return fakes

    with mock.patch.object(_trace, "_fakify_params_buffers", with_values):
        yield
