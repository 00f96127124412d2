"""Writes the language model of a folder as a float ONNX file with its weights beside it.

python benchmarks/large/as_onnx.py FOLDER FILE
"""

from __future__ import annotations

import argparse
from pathlib import Path

import onnx
import torch
from transformers import AutoModelForCausalLM


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids, use_cache=False).logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    model = Logits(AutoModelForCausalLM.from_pretrained(given.folder, local_files_only=True).eval())
    open_ = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    ids = torch.zeros(2, 8, dtype=torch.int64)
    names = {"input_names": ["input_ids"], "output_names": ["logits"]}
    made = torch.onnx.export(model, (ids,), dynamo=True, dynamic_shapes=(open_,), **names)
    data = f"{given.file.name}.data"
    onnx.save(made.model_proto, given.file, save_as_external_data=True, location=data)


if __name__ == "__main__":
    main()
