"""The fake-quantized model in torch: parity with a file, costly layers, divisions near zero.

Results are values of `qtool.verification`, which needs no torch.
"""
