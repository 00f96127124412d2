"""Mistakes with calibration data."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import qtool
from tests.mistakes.mistake import Cases, check_noted, check_refused
from tests.mistakes.nets import (
    IDS,
    IMAGES,
    Samples,
    broken_images,
    captured,
    flat_net,
    image_net,
    quantize,
    token_net,
    two_inputs,
)

BYTES = (IMAGES * 50).clamp(0, 255).to(torch.uint8)
NHWC = IMAGES.permute(0, 2, 3, 1)
A, B = torch.randn(40, 4), torch.randn(40, 5)
LABELS = torch.zeros(40).long()


def quantized_tensor() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that these will end
        return torch.quantize_per_tensor(IMAGES, 0.1, 0, torch.qint8)


REFUSED: Cases = {
    "arrays of different lengths": (
        lambda: quantize({"x": IMAGES, "mask": IMAGES[:3]}),
        "the arrays of the data have different numbers of samples: {'x': ..., 'mask': 3}",
    ),
    "one dict of numbers": (
        lambda: quantize({"x": 3}),
        "data is a dict, and 'x' in it has no samples along ... or a list of batches",
    ),
    "a path": (
        lambda: quantize("calib_data/digits"),
        "data is the name 'calib_data/digits'; give qtool.load_data('calib_data/digits')",
    ),
    "a Path": (
        lambda: quantize(Path("calib_data")),
        "data is the name 'calib_data'; give qtool.load_data('calib_data')",
    ),
    "a number": (lambda: quantize(5), "data of type int cannot be iterated over"),
    "None without known sizes": (
        lambda: quantize(None, image_net()),
        "there is no data, and the sizes of the ... qtool.capture_model(model, batch)",
    ),
    "an empty list": (
        lambda: quantize([]),
        "the calibration data is empty; give at least one batch",
    ),
    "an empty generator": (
        lambda: quantize(x for x in ()),
        "the calibration data is empty; give at least one batch",
    ),
    "an empty batch": (
        lambda: quantize([IMAGES[:0]]),
        "batch 0, input 0 has no samples; remove empty batches",
    ),
    "a dataset": (
        lambda: quantize(Samples()),
        "data is a Samples, a dataset of single ... if its items are batches",
    ),
    "a TensorDataset": (
        lambda: quantize(TensorDataset(IMAGES)),
        "data is a TensorDataset, a dataset of single ... batch_size=None if its items are batches",
    ),
    "a loader with batch_size=None": (
        lambda: quantize(DataLoader(Samples(), batch_size=None), image_net()),
        "the model does not run on the given inputs ... a DataLoader makes batches of samples",
    ),
    "single samples": (
        lambda: quantize(list(IMAGES), image_net()),
        "the model does not run on the given inputs ... a DataLoader makes batches of samples",
    ),
    "single samples for a captured model": (
        lambda: quantize(list(IMAGES)),
        "batch 0, input 'input' has shape [3, 8, ... x[None] or those of a DataLoader",
    ),
    "bytes": (
        lambda: quantize([BYTES], image_net()),
        "the model does not run on the given inputs ... / 255, so convert the batches with that",
    ),
    "bytes for a captured model": (
        lambda: quantize([BYTES]),
        "batch 0, input 'input' is uint8, the model ... convert it first (x.float() / 255)",
    ),
    "bytes with channels last": (
        lambda: quantize([BYTES.permute(0, 2, 3, 1)], image_net()),
        "the model does not run on the given inputs ... / 255, so convert the batches with that",
    ),
    "channels last": (
        lambda: quantize([NHWC], image_net()),
        "the model does not run on the given inputs ... 1, 2), so convert the batches with that",
    ),
    "one image with channels last": (
        lambda: quantize([NHWC[0]], image_net()),
        "the model does not run on the given inputs ... so convert the batches with that",
    ),
    "one image of bytes with channels last": (
        lambda: quantize([BYTES.permute(0, 2, 3, 1)[0]], image_net()),
        "the model does not run on the given inputs ... / 255, so convert the batches with that",
    ),
    "images for a flat network": (
        lambda: quantize([torch.randn(40, 3, 2, 2)], flat_net()),
        "the model does not run on the given inputs ... so convert the batches with that",
    ),
    "integers for a flat network": (
        lambda: quantize([torch.ones(40, 12).long()], flat_net()),
        "the model does not run on the given inputs ... so convert the batches with that",
    ),
    "bool for a flat network": (
        lambda: quantize([torch.ones(40, 12).bool()], flat_net()),
        "the model does not run on the given inputs ... so convert the batches with that",
    ),
    "floats as token ids": (
        lambda: quantize([IDS.float()], token_net()),
        "the model does not run on the given inputs ... so convert the batches with that",
    ),
    "too many channels": (
        lambda: quantize([torch.randn(40, 4, 8, 8)], image_net()),
        "the model does not run on ... 3 channels, but got 4 channels instead; ... with x[:, :3]",
    ),
    "images of another size": (
        lambda: quantize([torch.randn(40, 3, 9, 9)], image_net()),
        "the model does not run on ... (40x196 and 144x5); change ... interpolate(x, (8, 8))",
    ),
    "another size later": (
        lambda: quantize([IMAGES, torch.randn(4, 3, 9, 9)]),
        "batch 1, input 'input' has shape [4, 3, 9, 9], ... takes input: float32[batch, 3, 8, 8]",
    ),
    "another number of channels later": (
        lambda: quantize([IMAGES, IMAGES[:, :1]]),
        "batch 1, input 'input' has shape [40, 1, 8, 8], ... takes input: float32[batch, 3, 8, 8]",
    ),
    "integers later": (
        lambda: quantize([IMAGES, IMAGES.long()]),
        "batch 1, input 'input' is int64, the model ... convert it first (x.to(torch.float32))",
    ),
    "NaN": (
        lambda: quantize([IMAGES, IMAGES * torch.nan]),
        "batch 1, input 0 holds NaN in its sample 0; remove or repair that sample",
    ),
    "Inf": (
        lambda: quantize([IMAGES / 0]),
        "batch 0, input 0 holds Inf in its sample 0; remove or repair that sample",
    ),
    "a loader that fails later": (
        lambda: quantize(broken_images()),
        "reading batch 1 failed: OSError: the network drive is gone",
    ),
    "rows, each a batch": (
        lambda: quantize(list(torch.randn(40, 12)), flat_net()),
        "input 0 is one sample of 12 numbers, no batch of samples; ... all samples as one array",
    ),
    "a list of lists": (
        lambda: quantize([[[1.0, 2.0]]]),
        "batch 0 has 2 tensors, the model takes 1: input: float32[batch, 3, 8, 8]",
    ),
    "numbers": (
        lambda: quantize([1.0, 2.0]),
        "a batch is a float; give tensors, tuples of ... a transform, texts through a tokenizer)",
    ),
    "texts": (
        lambda: quantize(["a cat", "a dog"]),
        "a batch is a str; give tensors, tuples of ... a transform, texts through a tokenizer)",
    ),
    "a function": (
        lambda: quantize(lambda: [IMAGES]),
        "data of type function cannot be iterated over; call it, and give its result",
    ),
    "names of files in a batch": (
        lambda: quantize([["a.png", "b.png"]], image_net()),
        "a batch holds no tensors; give tensors (images through a transform, texts through a",
    ),
    "None in a batch": (
        lambda: quantize([None]),
        "a batch is a NoneType; give tensors, ... texts through a tokenizer)",
    ),
    "an array of objects": (
        lambda: quantize([np.array([object()])]),
        "an array of type object cannot be a model input; give numbers",
    ),
    "an array of texts": (
        lambda: quantize([np.array(["cat"])]),
        "an array of type <U3 cannot be a model input; give numbers",
    ),
    "a sparse tensor": (
        lambda: quantize([IMAGES.to_sparse()]),
        "batch 0, input 0 is sparse (torch.sparse_coo); give a dense tensor",
    ),
    "a quantized tensor": (
        lambda: quantize([quantized_tensor()]),
        "batch 0, input 0 is a quantized tensor (torch.qint8); give its values, x.dequantize()",
    ),
    "complex numbers": (
        lambda: qtool.quantize(image_net(), [IMAGES.to(torch.complex64)]),
        "the model does not run on the given inputs (input 0: complex64[40, ... RuntimeError:",
    ),
    "a meta tensor": (
        lambda: quantize([IMAGES.to("meta")]),
        "batch 0, input 0 is on the meta device, without values; give a dense tensor",
    ),
    "a dict with another key": (
        lambda: quantize([{"left": A, "right": B}], two_inputs()),
        "a batch has left, right, Two.forward ... in the order of the arguments",
    ),
    "a dict with a key too few": (
        lambda: quantize([{"a": A}], two_inputs()),
        "a batch has a, Two.forward takes a, b ... in the order of the arguments",
    ),
    "a dict with a key too many and one too few": (
        lambda: quantize([{"a": A, "mask": A}], two_inputs()),
        "a batch has a, mask, Two.forward ... in the order of the arguments",
    ),
    "a tuple with an entry too few": (
        lambda: quantize([(A,)], two_inputs()),
        "a batch does not fit Two.forward(a: ... 'Any': missing a required argument: 'b'",
    ),
    "inputs in the wrong order": (
        lambda: quantize([(B, A)], two_inputs()),
        "the model does not run on the given inputs ... cannot be multiplied (40x5 and 4x3)",
    ),
    "a float as samples": (
        lambda: quantize([IMAGES], samples=0.5),
        "samples is 0.5; give a whole number of at least 1",
    ),
    "no samples": (
        lambda: quantize([IMAGES], samples=0),
        "samples is 0; give a whole number of at least 1",
    ),
    "PIL images": (
        lambda: quantize([Image()]),
        "a batch is a Image; give tensors, tuples of ... a transform, texts through a tokenizer)",
    ),
}
NOTED: Cases = {
    "a dict with a key too many": (
        lambda: quantize([{"a": A, "b": B, "mask": A}], two_inputs()),
        "'mask' in the batches is left out: the model has no such input",
    ),
    "float64": (
        lambda: quantize([IMAGES.double()], image_net()),
        "the data is in float64: it is converted to float32",
    ),
    "half": (
        lambda: quantize([IMAGES.half()], image_net()),
        "the data is in float16: it is converted to float32",
    ),
    "a float64 array": (
        lambda: quantize([IMAGES.double().numpy()], image_net()),
        "the data is in float64: it is converted to float32",
    ),
    "labels in a dict": (
        lambda: quantize([{"a": A, "b": B, "labels": LABELS}], two_inputs()),
        "'labels' in the batches is left out: labels are no input",
    ),
    "a target in a dict": (
        lambda: quantize([{"a": A, "b": B, "target": LABELS}], two_inputs()),
        "'target' in the batches is left out: labels are no input",
    ),
    "image and label": (
        lambda: quantize([{"image": IMAGES, "label": LABELS}], image_net()),
        "'label' in the batches is left out: labels are ... in the batches is the input 'input'",
    ),
    "another key for one input": (
        lambda: quantize([{"pixel_values": IMAGES}], image_net()),
        "'pixel_values' in the batches is the input 'input'",
    ),
    "one sample": (
        lambda: quantize([IMAGES[:1]]),
        "calibrated on 1 sample; ranges and recovery ... steps need at least 32, better 100 to 500",
    ),
    "three samples": (
        lambda: quantize([IMAGES[:3]]),
        "calibrated on 3 samples; ranges and ... need at least 32, better 100 to 500",
    ),
    "few samples in dynamic mode": (
        lambda: quantize([IMAGES[:3]], mode="dynamic"),
        "calibrated on 3 samples; ranges and ... need at least 32, better 100 to 500",
    ),
    "all zero": (
        lambda: quantize([IMAGES * 0]),
        "every value of input 'input' is 0 in the ... no accuracy on real data follows from it",
    ),
    "one sample again and again": (
        lambda: quantize([IMAGES[:1].repeat(20, 1, 1, 1)] * 2),
        "all 40 calibration samples are equal; ranges need samples that differ: check how the data",
    ),
    "one text again and again": (
        lambda: quantize([IDS[:1].repeat(40, 1)], token_net()),
        "all 40 calibration samples are equal; ranges need samples that differ",
    ),
    "all equal": (
        lambda: quantize([IMAGES * 0 + 0.5]),
        "every value of input 'input' is 0.5 in the ... no accuracy on real data follows from it",
    ),
    "images of 0 to 255": (
        lambda: quantize([BYTES.float()]),
        "input 'input' has values from 0 to 205; most ... and normalised: check the preprocessing",
    ),
    "31 samples of a loader": (
        lambda: quantize(DataLoader(Samples(), 8), samples=31),
        "calibrated on 31 samples; ranges and ... need at least 32, better 100 to 500",
    ),
    "few samples of calibrate": (
        lambda: qtool.calibrate(captured(), [IMAGES[:8]]),
        "calibrated on 8 samples; ranges and ... need at least 32, better 100 to 500",
    ),
}


class Image:
    """Stands for a PIL image."""


@pytest.mark.parametrize(("call", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused(call, expected):
    check_refused(call, expected)


@pytest.mark.parametrize(("call", "expected"), NOTED.values(), ids=NOTED)
def test_noted(call, expected, caplog):
    check_noted(call, expected, caplog)
