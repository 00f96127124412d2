"""The converted model: a callable fake-quantized graph, its plan, export and verification."""
