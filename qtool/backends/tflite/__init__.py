"""TFLite (LiteRT): the arithmetic of its reference kernels."""
