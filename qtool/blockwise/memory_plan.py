"""Whether a conversion of a whole model fits into memory, and the blocks of one that does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from qtool.algorithms.pipeline import Scope
from qtool.algorithms.registry import select_steps
from qtool.backends.onnx.initializers import float_bytes
from qtool.core.on_use import OnUse
from qtool.frontends.huggingface.foreign_weights import coded
from qtool.planning.recipe import Recipe

if TYPE_CHECKING:
    from qtool.frontends.huggingface.safetensors_files import WeightFiles

_stored_identity = OnUse("qtool.blockwise.checkpoint:stored_identity")
_weight_files: Callable[[Path], WeightFiles] = OnUse(
    "qtool.frontends.huggingface.safetensors_files:WeightFiles"
)

WHOLE = 6
"""Memory of a conversion of a whole model, in multiples of its float32 weights."""
OF_BLOCK = 10
"""Memory of a conversion block by block, in multiples of the float32 weights of a block."""
OF_TRAINED_BLOCK = 15
"""The same where steps train the block: codes, gradients and two moments of Adam, and values of the
size of the block."""
OF_SELF_TEST = 3
"""Memory of making the self-test of a file, in multiples of the float32 weights of its model."""
OF_VERIFICATION = 4
"""The same of verifying the whole file; one that takes more is verified block by block alone."""
LIMIT = WHOLE << 32
"""Memory of a conversion, by default: a model with more than 4 GiB of float32 weights is converted
block by block on every machine. What is free there does not decide what a file contains."""
LEAST = 160 << 20
"""Memory that a process takes anyway: a small file is measured and tested whatever the limit is."""
BLOCK, SMALLEST = 1 << 28, 1 << 20
"""Default and smallest size of a block: bytes of its weights in float32."""


def whole_memory(path: Path) -> int:
    """Return the memory in bytes that a conversion of a whole model takes; 0 where it is unknown.

    Args:
        path: a model folder with safetensors, or an ONNX file; others have no known size, nor have
            codes of a quantized checkpoint, which are not converted block by block.

    Raises:
        CaptureError: a file of weights is missing or damaged.
    """
    if path.suffix == ".onnx" and path.is_file():
        return WHOLE * float_bytes(path)
    if (
        coded(path) is None
        and (path / "config.json").is_file()
        and list(path.glob("*.safetensors"))
    ):
        return WHOLE * sum(4 * prod(t.shape) for t in _weight_files(path).tensors.values())
    return 0


def memory_beyond(path: Path, output: Path, limit: int) -> int | None:
    """Return the memory that a conversion of the whole model takes, if it is converted by blocks:
    if that is more than the limit, or such a conversion was interrupted; else None.

    Args:
        path: as of `whole_memory`.
        output: file of the result.
        limit: bytes to use.
    """
    needed = whole_memory(path)
    begun = needed and _stored_identity(output) is not None
    return needed if begun or needed > limit else None


def self_test_memory(output: Path, limit: int) -> int:
    """Return the memory in bytes for what runs the whole file: the limit, or that of an interrupted
    conversion to the same output, so that its bytes do not depend on the interruption."""
    begun = _stored_identity(output) or {}
    stored = begun.get("memory", "")
    return int(stored) if stored.isdecimal() else max(limit, LEAST)


def block_size(output: Path, memory: int | None, recipe: Recipe) -> int:
    """Return the size of a block in bytes of float32 weights.

    A conversion that goes on has the blocks that it began with.

    Args:
        output: file of the result.
        memory: bytes that the conversion may take; None: unknown.
        recipe: recipe of the conversion; its steps may train.
    """
    begun = _stored_identity(output)
    if begun is not None and begun.get("block", "").isdecimal():
        return int(begun["block"])
    trains = any(step.scope is Scope.PART for step in select_steps(recipe))
    size, multiple = BLOCK, OF_TRAINED_BLOCK if trains else OF_BLOCK
    while memory is not None and size > SMALLEST and multiple * size > memory:
        size //= 2
    return size


@dataclass(frozen=True)
class StoredModel:
    """A model whose weights stay in their files, for a conversion block by block.

    Attributes:
        path: its folder or ONNX file.
        module: built without weights; None for an ONNX file.
        block: bytes of float32 weights in memory at once.
        memory: bytes that what runs the whole file may take.
    """

    path: Path
    module: nn.Module | None
    block: int
    memory: int

    @classmethod
    def of(
        cls,
        path: Path,
        module: nn.Module | None,
        output: Path,
        memory: int | None,
        recipe: Recipe,
    ) -> StoredModel:
        """Return a model with blocks that suit the memory; see `block_size`.

        Args:
            path, module: see the attributes.
            output: file of the result.
            memory: bytes that the conversion may take; None: `LIMIT`.
            recipe: how it is quantized; its steps may train.
        """
        limit = LIMIT if memory is None else memory
        sizes = block_size(output, memory, recipe), self_test_memory(output, limit)
        return cls(path, module, *sizes)
