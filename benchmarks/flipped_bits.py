"""How many files with one to four flipped bits `qtool verify` passes; it needs no torch.

    python benchmarks/flipped_bits.py FILE... [--draws 300]

The bits are anywhere in the file: weights, graph, metadata, padding. Draws go to the files in turn;
the seed of a draw is its number.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

import qtool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, default=300)
    options = parser.parse_args()
    results: Counter[tuple[str, str]] = Counter()
    before = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.draws):
            file = options.files[seed % len(options.files)]
            draw, data = np.random.default_rng(seed), bytearray(file.read_bytes())
            for position in draw.choice(8 * len(data), draw.integers(1, 5), replace=False):
                data[position // 8] ^= 1 << position % 8
            copy = Path(folder, file.name)
            copy.write_bytes(data)
            try:
                outcome = "passed" if qtool.verify(copy).passed else "not verified"
            except qtool.QtoolError as error:
                outcome = type(error).__name__
            results[file.name, outcome] += 1
    for (name, outcome), count in sorted(results.items()):
        print(f"{name}  {outcome}: {count}")
    print(f"{time.process_time() - before:.1f} s CPU")


if __name__ == "__main__":
    main()
