"""Quantized checkpoints of GPTQ, AWQ and compressed-tensors, with their codes as they are."""

from qtool.core.plugins import Plugin

PLUGIN = Plugin(functions={"load_checkpoint": "qtool.plugins.checkpoints.load:load_checkpoint"})
