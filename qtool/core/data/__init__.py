"""Data as people bring it: batches of any iterable, arrays on disk."""

from qtool.core.data.batches import MASK, Batch, batches, peek, tensor_of, to_batch

__all__ = ["MASK", "Batch", "batches", "peek", "tensor_of", "to_batch"]
