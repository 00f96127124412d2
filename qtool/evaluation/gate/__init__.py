"""The gate: whether a quantized file may take the place of its float file, decided by intervals."""
