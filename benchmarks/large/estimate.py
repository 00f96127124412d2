"""How long `qtool quantize` takes, block by block, for a Llama of some size, and what
memory: a model of its cost, whose constants were measured.

    python benchmarks/large/estimate.py --tokens 65536 --gflops 100
    python benchmarks/large/estimate.py --folder FOLDER --tokens 1024

Of a layer [out, in] with T tokens the arithmetic is, in multiply-adds: both networks' results, what
is missing of them and its moments, X^T X once for layers that read the same, the inverse of its
parts, and the rounding with feedback.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

COLUMNS, ASIDE, LEARNED = 1024, 1024, 0.75  # as in qtool/blockwise/layer_moments.py
FLOAT = 4

# Measured: see docs/scale.md.
PER_WEIGHT = 285e-9  # s of one core: scales, steps of rounding in numpy, codes, verification
PER_BLOCK = 1.0  # s of one core: passes, plan, export, sessions
PER_NODE = 0.017  # s of one core: the graph, traced once
BASE = 450  # MiB: torch, onnx, ONNX Runtime
NODE = 0.1  # MiB: of the graph
COPIES = 6.4  # of a block's weights: mapped, what is missing, rounded, dequantized to verify
NODES = 70  # of a layer


@dataclass(frozen=True)
class Llama:
    width: int
    inner: int
    layers: int
    few: int
    words: int

    def matrices(self) -> list[list[tuple[int, int]]]:
        """(outputs, inputs) of a layer of the network, those with the same inputs together."""
        w, i = self.width, self.inner
        return [[(w, w), (self.few, w), (self.few, w)], [(w, w)], [(i, w), (i, w)], [(w, i)]]

    @property
    def head(self) -> tuple[int, int]:
        return self.words, self.width

    @property
    def weights(self) -> float:
        layer = sum(o * i for group in self.matrices() for o, i in group)
        return self.layers * layer + 2 * self.words * self.width


SIZES = {
    "1.5B": Llama(2048, 5632, 32, 256, 32000),
    "8B": Llama(4096, 14336, 32, 1024, 128256),
    "70B": Llama(8192, 28672, 80, 1024, 128256),
    "405B": Llama(16384, 53248, 126, 1024, 128256),
}


def operations(outputs: int, inputs: int, tokens: int, first: bool) -> float:
    """Floating-point operations of one layer; `first`: of those that read the same."""
    part = min(COLUMNS, inputs)
    forward = (4 + 4 * LEARNED) * tokens * outputs * inputs
    squares = 2 * LEARNED * tokens * inputs**2 + 8 * inputs * part**2 if first else 0
    aside = 6 * min(ASIDE, (1 - LEARNED) * tokens)
    rounding = outputs * inputs * (5 * part + inputs - part + aside)
    return forward + squares + rounding


def seconds(model: Llama, tokens: int, block: int, gflops: float, cores: int) -> float:
    """What is not arithmetic of large matrices runs on one core."""
    per_layer = sum(
        operations(o, i, tokens, n == 0)
        for group in model.matrices()
        for n, (o, i) in enumerate(group)
    )
    total = model.layers * per_layer + operations(*model.head, tokens, first=True)
    blocks = max(model.layers, FLOAT * model.weights / block)
    rest = PER_WEIGHT * model.weights + PER_BLOCK * blocks + PER_NODE * NODES * model.layers
    return total / (gflops * 1e9 * cores) + rest


def peak(model: Llama, tokens: int, batch: int, block: int) -> float:
    """MiB. Layers are split where they are larger than a block. batch: tokens of one."""
    widest = max(i for group in model.matrices() for _, i in group)
    held = FLOAT * widest**2 + COPIES * block  # moments; weights
    aside = min(ASIDE, (1 - LEARNED) * tokens)
    rows = FLOAT * aside * (widest + block / FLOAT / widest) * 4
    alive = FLOAT * batch * (4 * model.width + 3 * model.inner) * 2
    ends = FLOAT * batch * model.words * 6  # logits of a batch, where they are joined
    return BASE + NODE * NODES * model.layers + max(held + rows + alive, ends) / 2**20


def disk(model: Llama, tokens: int) -> float:
    """MiB of tensors between blocks, in both networks, before and behind a block."""
    return 2 * 2 * FLOAT * tokens * (2 * model.width + model.inner) / 2**20


def of_folder(folder: Path) -> Llama:
    known = json.loads((folder / "config.json").read_text())
    heads, few = known["num_attention_heads"], known["num_key_value_heads"]
    width = known["hidden_size"]
    sizes = (width, known["intermediate_size"], known["num_hidden_layers"])
    return Llama(*sizes, width // heads * few, known["vocab_size"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="by default: 8B, 70B and 405B")
    parser.add_argument("--tokens", type=int, default=65536, help="of all samples")
    parser.add_argument("--batch", type=int, default=512, help="tokens of a batch")
    parser.add_argument("--gflops", type=float, default=65, help="of float32 products, a core")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--block", type=int, default=256, help="MiB")
    given = parser.parse_args()
    models = {given.folder.name: of_folder(given.folder)} if given.folder else SIZES
    block = given.block << 20
    for name, model in models.items():
        hours = seconds(model, given.tokens, block, given.gflops, given.cores) / 3600
        memory, stored = peak(model, given.tokens, given.batch, block), disk(model, given.tokens)
        print(
            f"{name}: {model.weights / 1e9:.2f} billion weights, {hours:.2f} h, peak "
            f"{memory / 1024:.2f} GiB, {stored / 1024:.1f} GiB of tensors on the disk"
        )


if __name__ == "__main__":
    main()
