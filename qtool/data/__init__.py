"""Data as people bring it: batches of any iterable, arrays on disk."""

from qtool.data.batch import Batch, batches, tensor_of, to_batch

__all__ = ["Batch", "batches", "tensor_of", "to_batch"]
