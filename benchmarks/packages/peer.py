"""onnxruntime.quantization with the samples that qtool has, in a process of its own.

    python benchmarks/packages/peer.py FLOAT.onnx OUT.onnx static|dynamic [SAMPLES.npz] [--whole]

The file is prepared as its documentation asks: raised to operator set 13, which scales per channel
need, and with symbolic shapes, or without them where that fails. static is QDQ with a scale per
channel of the weights. dynamic takes the plain file first.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import version_converter
from onnxruntime import quantization as q
from onnxruntime.quantization.shape_inference import quant_pre_process

PER_CHANNEL = 13  # first operator set with scales per channel


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


def prepare(plain: str, ready: str) -> None:
    """Write the file that the quantizers take."""
    model = onnx.load(plain)
    version = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    if version < PER_CHANNEL:
        onnx.save(version_converter.convert_version(model, PER_CHANNEL), ready)
        plain = ready
    try:
        quant_pre_process(plain, ready)
    except Exception:  # noqa: BLE001  # symbolic shapes fail in many ways
        quant_pre_process(plain, ready, skip_symbolic_shape=True)


def main() -> None:
    plain, out, mode, *data = sys.argv[1:]
    ready = str(Path(out).with_suffix(".ready.onnx"))
    before = time.process_time()
    if mode == "dynamic":
        try:
            q.quantize_dynamic(plain, out)
        except Exception:  # noqa: BLE001  # constants that are nodes, for one
            prepare(plain, ready)
            q.quantize_dynamic(ready, out)
    else:
        prepare(plain, ready)
        q.quantize_static(ready, out, Samples(data[0], "--whole" in data), per_channel=True)
    print(json.dumps({"seconds": time.process_time() - before}))


if __name__ == "__main__":
    main()
