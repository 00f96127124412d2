"""TFLite's reference kernels (BUILTIN_REF), bit for bit."""
