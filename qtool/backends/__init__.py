"""Backends: the file formats that qtool writes, the runtimes that execute them, their arithmetic.

`onnx` reads and writes files, `onnxruntime` opens sessions and reproduces its kernels bit for bit,
`openvino` and `tflite` hold what is specific to those runtimes, `kernels` what kernels share. What
checks the files of a runtime is in its folder; what checks mean is in `qtool.verification`.
"""
