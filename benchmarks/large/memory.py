"""Peak memory of `qtool quantize` block by block with once, 10 times and 100 times the samples.

python benchmarks/large/memory.py FOLDER SCRATCH --words 2000
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime as ort
from command import run, words


def outputs(model: Path, data: Path) -> str:
    """What ONNX Runtime gives for the first sample."""
    (found,) = ort.InferenceSession(model).run(None, {"input_ids": np.load(data)["input_ids"][:1]})
    assert np.isfinite(found).all()
    return (
        f"ONNX Runtime runs it: {list(found.shape)}, of {found.std():.3g} around {found.mean():.3g}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--words", type=int, default=2000)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--memory", default="20", help="MiB; a tenth is a block")
    parser.add_argument("--limit", type=int, default=0, help="of memory in MiB, by a control group")
    parser.add_argument("--outputs", action="store_true", help="run the result, without the limit")
    given = parser.parse_args()
    given.scratch.mkdir(parents=True, exist_ok=True)
    first = 0.0
    for times in given.times:
        count = given.samples * times
        data = words(given.scratch / "ids.npz", count, given.length, given.words)
        out = given.scratch / "model.onnx"
        more = ("--batch-size", str(given.batch), "--memory", f"{given.memory}MiB")
        ran = run(given.folder, data, out, *more, limit=given.limit)
        first = first or ran.peak
        print(
            f"{count} samples: {ran}, {ran.peak / first:.3f} times the first\n{ran.said}",
            flush=True,
        )
        if given.outputs:
            print(outputs(out, data), flush=True)


if __name__ == "__main__":
    main()
