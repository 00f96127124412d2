"""Quantization algorithms: steps that change a model to recover accuracy, and their pipeline.

One module or folder per algorithm: SmoothQuant, cross-layer equalization, weight rounding (GPTQ),
bias correction, weight scale search, BatchNorm re-estimation, learned scales (LSQ). `registry`
lists the steps in order, `pipeline` runs them, `acceptance` decides whether a result is kept.
"""
