"""ONNX Runtime's WebGPU provider on the GPU of this machine; software adapters are not timed."""
