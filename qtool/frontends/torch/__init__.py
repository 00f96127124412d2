"""PyTorch frontend: an `nn.Module` or an ExportedProgram becomes the float graph."""
