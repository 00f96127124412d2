"""onnxruntime-web: ONNX Runtime in WebAssembly, here in node, on one thread."""
