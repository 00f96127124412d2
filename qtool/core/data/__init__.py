"""Calibration and evaluation data: batches of any iterable, arrays on disk."""

from qtool.core.data.batches import (
    AHEAD,
    Batch,
    batches,
    peek,
    to_batch,
    to_tensor,
    whole_texts,
)

__all__ = ["AHEAD", "Batch", "batches", "peek", "to_batch", "to_tensor", "whole_texts"]
