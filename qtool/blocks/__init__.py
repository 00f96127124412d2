"""Models larger than memory, block by block."""

from qtool.blocks.quantize import BlockResult, quantize_by_blocks

__all__ = ["BlockResult", "quantize_by_blocks"]
