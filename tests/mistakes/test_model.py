"""Mistakes with the model."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import qtool
from tests.mistakes.mistake import Cases, check_noted, check_refused
from tests.mistakes.nets import IDS, IMAGES, Two, custom, flat_net, image_net, quantize, token_net

D = [IMAGES]
A, B, LABELS = torch.randn(40, 4), torch.randn(40, 5), torch.arange(40) % 3
REFUSED: Cases = {
    "a class instead of an instance": (
        lambda: quantize(D, nn.ReLU),
        "not a class; give an instance, ReLU",
    ),
    "a function": (
        lambda: quantize(D, torch.relu),
        "a model is an nn.Module or an ExportedProgram, not a builtin_function_or_method",
    ),
    "a checkpoint": (
        lambda: quantize(D, {"epoch": 3, "model": image_net().state_dict()}),
        "not a checkpoint; build the network and call its load_state_dict with the entry 'model'",
    ),
    "a dict with a model": (
        lambda: quantize(D, {"epoch": 3, "model": image_net()}),
        "not a dict; give the model in it, its entry 'model'",
    ),
    "a tuple with a model": (
        lambda: quantize(D, (image_net(), ["cat", "dog"])),
        "not a tuple; give the model in it, its entry 0",
    ),
    "parameters": (
        lambda: quantize(D, list(image_net().parameters())),
        "not a list; give the model first, then the data",
    ),
    "an array": (
        lambda: quantize(D, IMAGES.numpy()),
        "not a ndarray; give the model first, then the data",
    ),
    "a method": (
        lambda: quantize(D, image_net().forward),
        "not a method of a Sequential; give the module itself",
    ),
    "a function of Python": (
        lambda: quantize(D, lambda x: x),
        "not a function; call it if it builds the model, or write it as an nn.Module",
    ),
    "a session of ONNX Runtime": (
        lambda: quantize(D, type("InferenceSession", (), {})()),
        "not an onnxruntime.InferenceSession; give qtool.load_model(path) of its file",
    ),
    "a state dict": (
        lambda: quantize(D, image_net().state_dict()),
        "a model is an nn.Module or an ... and call its load_state_dict",
    ),
    "None": (
        lambda: qtool.quantize(None, D),
        "a model is an nn.Module or an ExportedProgram, not a NoneType",
    ),
    "a name": (
        lambda: quantize(D, "resnet18"),
        "a model is an nn.Module or an ... give qtool.load_model('resnet18')",
    ),
    "in training mode": (
        lambda: quantize(D, image_net().train()),
        "the model is in training mode; call model.eval() first",
    ),
    "a dropout layer in training mode": (
        lambda: quantize(D, _with_training_dropout()),
        "module '1' (Dropout) is in training mode; call model.eval() first",
    ),
    "functional dropout that is always on": (
        lambda: quantize(D, custom(lambda y, x: nn.functional.dropout(y, 0.5))),
        "the model draws random numbers ... noise, give it to the model as an input",
    ),
    "random noise": (
        lambda: quantize(D, custom(lambda y, x: y + torch.randn_like(y))),
        "the model draws random numbers ... noise, give it to the model as an input",
    ),
    "a branch on values": (
        lambda: quantize(D, custom(lambda y, x: y if x.sum() > 0 else -y)),
        "branches on values of its data at ... replace the branch by torch.where",
    ),
    "float() of a tensor": (
        lambda: quantize(D, custom(lambda y, x: y * float(x.mean()))),
        "makes a Python number of a tensor (float(x.mean())) at ... compute with",
    ),
    "int() of a tensor": (
        lambda: quantize(D, custom(lambda y, x: y[:, : int(x.argmax())])),
        "makes a Python number of a tensor (int(x.argmax())) at ... compute with",
    ),
    "numpy in forward": (
        lambda: quantize(D, custom(lambda y, x: y + torch.from_numpy(x.numpy()).sum())),
        "cannot capture the model at ... .numpy() is not supported ... rewrite that",
    ),
    "a string as output": (
        lambda: quantize(D, custom(lambda y, x: (y, "cat"))),
        "the model returns something that is not a ... in an nn.Module that returns tensors only",
    ),
    "None as output": (
        lambda: quantize(D, custom(lambda y, x: None)),
        "the model returns something that is not a ... in an nn.Module that returns tensors only",
    ),
    "no output that is a tensor": (
        lambda: quantize(D, custom(lambda y, x: {})),
        "nothing in this model can run in ... keep it in float",
    ),
    "an object as output": (
        lambda: quantize(D, custom(lambda y, x: Detections(y))),
        "the model returns an object of a class that ... with torch.export.register_dataclass",
    ),
    "an error of its own": (
        lambda: quantize(D, custom(lambda y, x: y.missing)),
        "the model does not run on the given inputs ... object has no attribute 'missing'",
    ),
    "exit() in forward": (
        lambda: quantize(D, custom(_leave)),
        "the model does not run on the given inputs ... 8]): it ended the process (sys.exit(3))",
    ),
    "NaN from a logarithm": (
        lambda: quantize(D, custom(lambda y, x: (-y.abs() - 1).log())),
        "batch 0: output 'output' of the float ... the data is what it was trained on",
    ),
    "Inf from a division": (
        lambda: quantize(D, custom(lambda y, x: y / (y * 0).relu())),
        "batch 0: output 'output' of the float ... the data is what it was trained on",
    ),
    "NaN weights": (
        lambda: quantize(D, _with_weight(torch.nan)),
        "the weights of the model hold NaN: ... its training diverged; take another one",
    ),
    "Inf weights": (
        lambda: quantize(D, _with_weight(torch.inf)),
        "the weights of the model hold Inf: ... its training diverged; take another one",
    ),
    "weights on the meta device": (
        lambda: quantize(D, image_net().to("meta")),
        "'0.weight' is on the meta device, which has no values; load the weights first",
    ),
    "TorchScript": (
        lambda: quantize(D, torch.jit.trace(image_net(), IMAGES)),
        "the model is a TorchScript module, which ... not support; give the original nn.Module",
    ),
    "DataParallel": (
        lambda: quantize(D, nn.DataParallel(image_net())),
        "the model is a DataParallel; give the one inside, model.module",
    ),
    "quantized by torch": (
        lambda: quantize(D, _quantized_by_torch()),
        "the model is quantized already ('1' is a Linear of torch.ao); give the float model",
    ),
    "the data before the model": (
        lambda: qtool.quantize(D, image_net()),
        "data is a Sequential, a model; the model comes first",
    ),
    "an ONNX model in memory": (
        lambda: quantize(D, _onnx_model()),
        "not an onnx.ModelProto; save it, and give qtool.load_model(path)",
    ),
    "a row that is padding alone": (
        lambda: quantize([(IDS, _all_padding())], Masked().eval()),
        "the mask excludes a row of an attention as a whole, ... leave out samples of padding",
    ),
    "a number as an argument": (
        lambda: quantize([(torch.randn(40, 12), 2.0)], Scaled().eval()),
        "input 'scale' is not a tensor; wrap the model in an ... fixes the other arguments",
    ),
    "a state in a buffer": (
        lambda: quantize([torch.randn(40, 12)], Counting().eval()),
        "the model changes its own buffers when it runs (count): ... as an input, and return it",
    ),
    "a number as an output": (
        lambda: quantize(D, custom(lambda y, x: (y, 3))),
        "the model returns something that is not a ... in an nn.Module that returns tensors only",
    ),
    "nothing to quantize": (
        lambda: quantize(D, nn.Softmax(1).eval()),
        "nothing in this model can run in ... keep it in float",
    ),
    "more classes in a table than tokens": (
        lambda: quantize([IDS + 10], token_net()),
        "input 0 holds 25, and module '0' has the rows 0 to 15; use the model's own tokenizer",
    ),
    "an LSTM with projections": (
        lambda: quantize(
            [torch.randn(40, 5, 3)], nn.LSTM(3, 4, proj_size=2, batch_first=True).eval()
        ),
        "ONNX does not support an LSTM with ... or put a linear layer behind the LSTM",
    ),
    "a module that contains itself": (
        lambda: quantize(D, _cyclic()),
        "module 'parent' (ModuleList) is in training mode; call model.eval() first",
    ),
    "prepared for training by torch.ao": (
        lambda: quantize(D, _prepared_by_torch()),
        "torch.ao prepared the model for quantization ('1' is a MinMaxObserver); give the float",
    ),
    "a GPU in forward": (
        lambda: quantize(D, custom(lambda y, x: _on_gpu(y))),
        "Torch not compiled with CUDA ... line ...); compute on the device of the input, x.device",
    ),
    "a layer in half": (
        lambda: quantize(D, _with_half_layer()),
        "must have the same dtype, but got Float and Half; call model.float() first",
    ),
    "an error with its place": (
        lambda: quantize(D, custom(lambda y, x: y @ x)),
        "the model does not run on the given inputs ... must match ... (...test_model.py, line",
    ),
    "lazy layers without a first run": (
        lambda: quantize(D, nn.Sequential(nn.LazyConv2d(4, 3)).eval()),
        "the model has lazy layers, whose ... call it with a batch first, then load its weights",
    ),
    "a forward without arguments": (
        lambda: quantize(D, Nullary().eval()),
        "a batch does not fit Nullary.forward() -> ... too many positional arguments",
    ),
    "no forward": (
        lambda: quantize(D, nn.Module().eval()),
        'the model does not run on the given inputs ... missing the required "forward" function',
    ),
    "a quantized model again": (
        lambda: quantize(D, quantize(D)),
        "a model is an nn.Module or an ExportedProgram, ... give the float model it was made from",
    ),
    "another input for dynamic": (
        lambda: qtool.capture_model(flat_net(), torch.randn(4, 12), {"x": {0: "n"}}),
        "dynamic names 'x', which is not an input; the inputs are input",
    ),
    "dynamic as a list": (
        lambda: qtool.capture_model(flat_net(), torch.randn(4, 12), [0]),
        "dynamic is [0]; give a dict of inputs ... such as {'tokens': {1: 'length'}}",
    ),
    "a dynamic dimension that is not there": (
        lambda: qtool.capture_model(flat_net(), torch.randn(4, 12), {"input": {5: "n"}}),
        "input 'input' has no dimension 5: its shape is [4, 12]",
    ),
    "capture without a batch": (
        lambda: qtool.capture_model(flat_net()),
        "there is no batch to capture the model with; give at least one",
    ),
}
NOTED: Cases = {
    "a loss": (
        lambda: quantize([(A, B, LABELS)], two_losses()),
        "the model returns one number for all samples, as a loss is: a file for predictions needs",
    ),
    "in half": (
        lambda: quantize(D, image_net().half()),
        "the model is in float16: a copy in float32 is quantized",
    ),
    "in bfloat16": (
        lambda: quantize(D, image_net().bfloat16()),
        "the model is in bfloat16: a copy in float32 is quantized",
    ),
    "in float64": (
        lambda: quantize(D, image_net().double()),
        "the model is in float64: a copy in float32 is quantized",
    ),
    "in half, with data in half": (
        lambda: quantize([IMAGES.half()], image_net().half()),
        "the model is in float16: a copy in float32 is quantized",
    ),
    "all weights zero": (
        lambda: quantize(D, _with_weight(0.0)),
        "4.weight: weights are zero in 5 of 5 channels",
    ),
}


def _no_backend(graph: Any, inputs: Any) -> Any:
    raise AssertionError("torch.compile ran its compiler")


@pytest.mark.parametrize("batch", [(IMAGES, IMAGES[:, 0, 0, 0]), {"image": IMAGES, "label": IDS}])
def test_a_compiled_model_is_taken_without_its_compiler(batch: Any) -> None:
    inner = image_net()
    inner[0] = torch.compile(inner[0], backend=_no_backend)
    quantized = quantize([batch], torch.compile(inner, backend=_no_backend))
    assert "_orig_mod" not in str(quantized)


class Loss(nn.Module):
    """Returns the loss of a network alone."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Two()

    def forward(self, a: torch.Tensor, b: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return self.net(a, b, labels)["loss"]


def two_losses() -> nn.Module:
    return Loss().eval()


class Detections:
    """A result that torch.export does not know."""

    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores


def _quantized_by_torch() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, that these will end
        net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval()
        return torch.ao.quantization.quantize_dynamic(net, {nn.Linear})


def _prepared_by_torch() -> nn.Module:
    from torch.ao.quantization import MinMaxObserver

    return nn.Sequential(image_net(), MinMaxObserver()).eval()


def _on_gpu(y: torch.Tensor) -> torch.Tensor:
    raise AssertionError("Torch not compiled with CUDA enabled")  # as y.cuda() without a GPU


def _with_half_layer() -> nn.Module:
    net = image_net()
    net[4].half()
    return net


def _onnx_model() -> object:
    import onnx

    return onnx.ModelProto()


class Masked(nn.Module):
    """Attention over token ids, with a mask of the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]


def _all_padding() -> torch.Tensor:
    padding = torch.zeros(40, 6).bool()
    padding[0] = True
    return padding


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.layer(x) * scale


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.layer(x) + self.count


class Nullary(nn.Module):
    def forward(self) -> torch.Tensor:
        return torch.ones(1)


def _leave(y: torch.Tensor, x: torch.Tensor) -> None:
    raise SystemExit(3)


def _with_training_dropout() -> nn.Module:
    net = nn.Sequential(image_net(), nn.Dropout()).eval()
    net[1].train()
    return net


def _with_weight(value: float) -> nn.Module:
    net = image_net()
    with torch.no_grad():
        net[4].weight.fill_(value)
    return net


def _cyclic() -> nn.Module:
    net = image_net()
    net.parent = nn.ModuleList([net])
    return net


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(("call", "expected"), REFUSED.values(), ids=REFUSED)
def test_refused(call, expected):
    check_refused(call, expected)


@pytest.mark.parametrize(("call", "expected"), NOTED.values(), ids=NOTED)
def test_noted(call, expected, caplog):
    check_noted(call, expected, caplog)
