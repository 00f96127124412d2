"""Peak memory of `qtool blockwise` with once, 10 times and 100 times the samples.

python benchmarks/large/memory.py FOLDER SCRATCH --words 2000
"""

from __future__ import annotations

import argparse
from pathlib import Path

from command import run, words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--block", default="2", help="MiB")
    parser.add_argument("--limit", type=int, default=0, help="of address space, in MiB")
    given = parser.parse_args()
    given.scratch.mkdir(parents=True, exist_ok=True)
    first = 0.0
    for times in given.times:
        count = given.samples * times
        data = words(given.scratch / "ids.npz", count, given.length, given.words)
        out = given.scratch / "model.onnx"
        more = ("--batch-size", str(given.batch), "--block", given.block)
        ran = run(given.folder, data, out, *more, limit=given.limit)
        first = first or ran.peak
        print(
            f"{count} samples: {ran.seconds:.0f} s, peak {ran.peak:.0f} MiB "
            f"({ran.peak / first:.3f} times the first)\n{ran.said}",
            flush=True,
        )


if __name__ == "__main__":
    main()
