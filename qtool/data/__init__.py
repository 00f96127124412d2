"""Data as people bring it: batches of any iterable, arrays on disk."""

from qtool.data.batch import Batch, batches, peek, tensor_of, to_batch

__all__ = ["Batch", "batches", "peek", "tensor_of", "to_batch"]
