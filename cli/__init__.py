"""The command line."""

from __future__ import annotations

import click


@click.group()
def main() -> None:
    """A trained PyTorch model in, a verified int8 ONNX model out."""
