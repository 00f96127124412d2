"""Positions of tokens, for files of other tools that take them as an input."""

from pathlib import Path

import onnx
import torch

from qtool.evaluation.feeder import Feeder

IDS = torch.tensor([[0, 0, 3, 4], [5, 6, 7, 8]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


def decoder(path: Path) -> Path:
    graph = """<ir_version: 8, opset_import: ["" : 17]>
        g (int64[n, s] input_ids, int64[n, s] attention_mask, int64[n, s] position_ids)
        => (int64[n, s] y) { z = Add (input_ids, position_ids) y = Mul (z, attention_mask) }"""
    onnx.save(onnx.parser.parse_model(graph), path)
    return path


def test_padding_in_front_does_not_move_a_text(tmp_path: Path) -> None:
    feeder = Feeder(decoder(tmp_path / "decoder.onnx"))
    _, _, positions = feeder.arrays({"input_ids": IDS, "attention_mask": MASK}, 0)
    assert positions.tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]


def test_positions_of_the_data_stay(tmp_path: Path) -> None:
    feeder = Feeder(decoder(tmp_path / "decoder.onnx"))
    own = {"input_ids": IDS, "attention_mask": MASK, "position_ids": IDS}
    assert feeder.arrays(own, 0)[2].tolist() == IDS.tolist()
