"""Block-wise conversion of models larger than memory, with checkpoints on disk."""
