"""Model folders of transformers and timm: loading, decoders with a KV cache, encoder-decoders."""
