"""onnxruntime.quantization with the samples that qtool has, in a process of its own.

    python benchmarks/packages/peer.py FLOAT.onnx OUT.onnx static|dynamic [SAMPLES.npz] [--whole]

static is QDQ with a scale per channel of the weights, after its own preparation of the file.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from onnxruntime import quantization as q
from onnxruntime.quantization.shape_inference import quant_pre_process


class Samples(q.CalibrationDataReader):
    """One by one: files may take no more."""

    def __init__(self, file: str, whole: bool) -> None:
        with np.load(file) as stored:
            arrays = {name: stored[name] for name in stored.files}
        count = len(next(iter(arrays.values())))
        self.rows = iter(
            {k: np.asarray(a[i]) if whole else a[i : i + 1] for k, a in arrays.items()}
            for i in range(count)
        )

    def get_next(self) -> Any:
        return next(self.rows, None)


def main() -> None:
    plain, out, mode, *data = sys.argv[1:]
    before = time.process_time()
    if mode == "dynamic":
        q.quantize_dynamic(plain, out)
    else:
        ready = str(Path(out).with_suffix(".ready.onnx"))
        quant_pre_process(plain, ready)
        reader = Samples(data[0], "--whole" in data)
        q.quantize_static(ready, out, reader, per_channel=True)
    print(json.dumps({"seconds": time.process_time() - before}))


if __name__ == "__main__":
    main()
