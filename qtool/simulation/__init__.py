"""What the fake-quantized model in torch says of a file: parity, costly layers, heavy tails.

Results are values of `qtool.verification`, which needs no torch.
"""
