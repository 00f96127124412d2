"""An ONNX file as a function of tensors, for the user's metrics."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch

from qtool.backends.session import run
from qtool.backends.table import open_model
from qtool.core.data import Batch, to_batch
from qtool.core.option_names import NATIVE
from qtool.evaluation.model_inputs import Feeder


class FileFunction:
    """An ONNX file that is called like the float model.

    Takes tensors by position or by name, and returns a tensor or a tuple of tensors.
    """

    def __init__(self, file: Path, runtime: str = NATIVE) -> None:
        self.file = file
        self.session = open_model(file, runtime=runtime)
        self.feeder = Feeder(file)
        self.calls = itertools.count()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        batch = Batch(to_batch(list(args)).args if args else (), to_batch(kwargs).kwargs)
        arrays = self.feeder.arrays(batch, next(self.calls))
        outputs = tuple(torch.from_numpy(o) for o in run(self.session, arrays))
        return outputs[0] if len(outputs) == 1 else outputs

    def eval(self) -> FileFunction:
        """Return self: evaluation loops call model.eval()."""
        return self
