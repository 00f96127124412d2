"""Frontends: models and data in the forms that people have, turned into one float graph.

`torch` captures an `nn.Module` or an ExportedProgram, `onnx` reads an ONNX file, `huggingface`
loads model folders (decoders with a KV cache, encoder-decoders, sharded weights), and `data` loads
datasets. Graph rewrites are in `qtool.passes`; nothing here knows a quantization plan.
"""
