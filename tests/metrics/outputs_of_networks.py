"""Outputs of networks and what each is: small definitions, names as exporters give them.

A network is a line for each node in the text form of ONNX. Inputs that begin with `w` are weights.
The kinds were written down before the rule that has to find them.
"""

from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper, parser

CLASS, TOKEN, PIXEL, LABELS = "class", "token", "pixel", "threshold"
VECTOR, NUMBERS, NOTHING = "cosine", "numbers", None
SAMPLES = 24


class Network(NamedTuple):
    """A network and what its outputs are.

    Attributes:
        signature: inputs and outputs, without the braces.
        body: the nodes.
        kinds: output -> its kind.
        names: names of classes in the metadata of the file.
        labels: number of classes that the user's labels have; 0 without labels.
    """

    signature: str
    body: str
    kinds: dict[str, str | None]
    names: str = ""
    labels: int = 0


_ENCODER = "h = Tanh(g) "
_LINEAR = "g = Gemm(x, w0) "

NETWORKS: dict[str, Network] = {
    "image classifier with softmax (keras)": Network(
        "(float[N,16] x, float[16,10] w0) => (float[N,10] predictions)",
        "g = Gemm(x, w0) predictions = Softmax<axis=-1>(g)",
        {"predictions": CLASS},
    ),
    "classifier with log-softmax (pytorch examples)": Network(
        "(float[N,16] x, float[16,10] w0) => (float[N,10] output)",
        "g = Gemm(x, w0) output = LogSoftmax<axis=1>(g)",
        {"output": CLASS},
    ),
    "text classifier (transformers)": Network(
        "(float[N,16] x, float[16,5] w0) => (float[N,5] logits)",
        "logits = Gemm(x, w0)",
        {"logits": CLASS},
    ),
    "classifier of torchvision, by its last layer": Network(
        '(float[N,16] x, float[16,12] "w.classifier.1.weight") => (float[N,12] output)',
        'output = Gemm(x, "w.classifier.1.weight")',
        {"output": CLASS},
    ),
    "ImageNet, by its thousand classes": Network(
        "(float[N,3,8,8] x, float[192,1000] w0) => (float[N,1000] linear)",
        "f = Flatten(x) linear = Gemm(f, w0)",
        {"linear": CLASS},
    ),
    "classifier, by names of classes in the file": Network(
        "(float[N,16] x, float[16,4] w0) => (float[N,4] output0)",
        "output0 = Gemm(x, w0)",
        {"output0": CLASS},
        names="{0: 'cat', 1: 'dog', 2: 'cow', 3: 'hen'}",
    ),
    "classifier, by the user's labels": Network(
        "(float[N,16] x, float[16,6] w0) => (float[N,6] output)",
        "output = Gemm(x, w0)",
        {"output": CLASS},
        labels=6,
    ),
    "classifier with its answer": Network(
        "(float[N,16] x, float[16,6] w0) => (float[N,6] out, int64[N] answer)",
        "out = Gemm(x, w0) answer = ArgMax<axis=1, keepdims=0>(out)",
        {"out": CLASS, "answer": NOTHING},
    ),
    "tags by a sigmoid": Network(
        "(float[N,16] x, float[16,20] w0) => (float[N,20] tags)",
        "g = Gemm(x, w0) c = Constant<value_float=8.0>() l = Mul(g, c) tags = Sigmoid(l)",
        {"tags": LABELS},
    ),
    "binary head of one": Network(
        "(float[N,16] x, float[16,1] w0) => (float[N,1] prob)",
        "g = Gemm(x, w0) c = Constant<value_float=12.0>() l = Mul(g, c) prob = Sigmoid(l)",
        {"prob": LABELS},
    ),
    "forecast of six steps": Network(
        "(float[N,16] x, float[16,8] w0, float[8,6] w1) => (float[N,6] forecast)",
        _LINEAR + _ENCODER + "forecast = Gemm(h, w1)",
        {"forecast": NUMBERS},
    ),
    "regressed vector of an MLP": Network(
        "(float[N,16] x, float[16,98] w0) => (float[N,98] output)",
        "output = Gemm(x, w0)",
        {"output": NUMBERS},
    ),
    "price": Network(
        "(float[N,16] x, float[16,1] w0) => (float[N,1] output)",
        "output = Gemm(x, w0)",
        {"output": NUMBERS},
    ),
    "classifier, its output called scores": Network(
        "(float[N,16] x, float[16,7] w0, float[1,7] w1) => (float[N,7] scores)",
        "g = MatMul(x, w0) scores = Add(g, w1)",
        {"scores": CLASS},
    ),
    "classifier, its last layer called score": Network(
        '(float[N,16] x, float[16,7] "w.score.weight") => (float[N,7] output)',
        'output = Gemm(x, "w.score.weight")',
        {"output": CLASS},
    ),
    "scores of boxes, the best of the classes": Network(
        "(float[N,40,16] x, float[16,3] w0) => (float[N,40] scores)",
        "s = MatMul(x, w0) a = Constant<value_ints=[2]>() scores = ReduceMax<keepdims=0>(s, a)",
        {"scores": NUMBERS},
    ),
    "boxes and scores of anchors (SSD)": Network(
        "(float[N,40,16] x, float[16,4] w0, float[16,3] w1) => "
        "(float[N,40,4] boxes, float[N,40,3] scores)",
        "boxes = MatMul(x, w0) s = MatMul(x, w1) scores = Softmax<axis=-1>(s)",
        {"boxes": NUMBERS, "scores": TOKEN},
    ),
    "face detector: heat map, offsets, landmarks": Network(
        "(float[N,3,16,16] x, float[1,3,3,3] w0, float[2,3,3,3] w1, float[10,3,3,3] w2) => "
        '(float[N,1,16,16] "537", float[N,2,16,16] "539", float[N,10,16,16] "540")',
        'h = Conv<pads=[1,1,1,1]>(x, w0) "537" = Sigmoid(h) '
        '"539" = Conv<pads=[1,1,1,1]>(x, w1) "540" = Conv<pads=[1,1,1,1]>(x, w2)',
        {"537": NUMBERS, "539": NUMBERS, "540": NUMBERS},
    ),
    "keypoints": Network(
        "(float[N,16] x, float[16,34] w0) => (float[N,17,2] keypoints)",
        "g = Gemm(x, w0) s = Constant<value_ints=[-1,17,2]>() keypoints = Reshape(g, s)",
        {"keypoints": NUMBERS},
    ),
    "landmarks by a sigmoid": Network(
        "(float[N,16] x, float[16,10] w0) => (float[N,10] landmarks)",
        "g = Gemm(x, w0) landmarks = Sigmoid(g)",
        {"landmarks": NUMBERS},
    ),
    "segmentation, resized (torchvision)": Network(
        '(float[N,3,8,8] x, float[5,3,1,1] "w.classifier.4.weight") => (float[N,5,16,16] out)',
        'g = Conv(x, "w.classifier.4.weight") s = Constant<value_floats=[1.0,1.0,2.0,2.0]>() '
        'out = Resize<mode="linear">(g, , s)',
        {"out": PIXEL},
    ),
    "segmentation with softmax, channels last": Network(
        "(float[N,3,8,8] x, float[2,3,1,1] w0) => (float[N,8,8,2] conv2d_9)",
        "g = Conv(x, w0) t = Transpose<perm=[0,2,3,1]>(g) conv2d_9 = Softmax<axis=-1>(t)",
        {"conv2d_9": PIXEL},
    ),
    "depth map": Network(
        "(float[N,3,16,16] x, float[1,3,7,7] w0) => (float[N,1,16,16] predicted_depth)",
        "predicted_depth = Conv<pads=[3,3,3,3]>(x, w0)",
        {"predicted_depth": NUMBERS},
    ),
    "image to image": Network(
        "(float[N,3,16,16] x, float[3,3,3,3] w0) => (float[N,3,16,16] sr)",
        "sr = Conv<pads=[1,1,1,1]>(x, w0)",
        {"sr": NUMBERS},
    ),
    "LSTM with its states": Network(
        "(float[T,N,8] x, float[1,24,8] w0, float[1,24,6] w1, float[6,3] w2) => "
        "(float[N,3] output, float[1,N,6] hn, float[1,N,6] cn)",
        "y, hn, cn = LSTM<hidden_size=6>(x, w0, w1) a = Constant<value_ints=[0]>() "
        "l = Squeeze(hn, a) output = MatMul(l, w2)",
        {"output": NUMBERS, "hn": NUMBERS, "cn": NUMBERS},
    ),
    "decoder with a cache": Network(
        "(float[N,12,8] x, float[8,8] w0, float[8,30] w1) => "
        '(float[N,12,30] logits, float[N,1,12,8] "present.0.key")',
        'k = MatMul(x, w0) a = Constant<value_ints=[1]>() "present.0.key" = Unsqueeze(k, a) '
        "logits = MatMul(k, w1)",
        {"logits": TOKEN, "present.0.key": NUMBERS},
    ),
    "vocoder": Network(
        "(float[N,8,40] x, float[1,8,5] w0) => (float[N,1,40] waveform)",
        "g = Conv<pads=[2,2]>(x, w0) waveform = Tanh(g)",
        {"waveform": NUMBERS},
    ),
    "mask of a spectrogram": Network(
        "(float[N,20,17] x, float[17,17] w0) => (float[N,20,17] enhanced)",
        "g = MatMul(x, w0) mask = Sigmoid(g) enhanced = Mul(x, mask)",
        {"enhanced": NUMBERS},
    ),
    "sentence vectors": Network(
        "(float[N,9,16] x, float[16,16] w0) => "
        "(float[N,9,16] last_hidden_state, float[N,16] sentence_embedding)",
        "last_hidden_state = MatMul(x, w0) a = Constant<value_ints=[1]>() "
        "p = ReduceMean<keepdims=0>(last_hidden_state, a) "
        "sentence_embedding = LpNormalization<axis=-1>(p)",
        {"last_hidden_state": VECTOR, "sentence_embedding": VECTOR},
    ),
    "CTC": Network(
        "(float[N,30,16] x, float[16,12] w0) => (float[N,30,12] logprobs)",
        "g = MatMul(x, w0) logprobs = LogSoftmax<axis=-1>(g)",
        {"logprobs": TOKEN},
    ),
    "duration of phonemes, and attention": Network(
        "(float[N,9,16] x, float[16,1] w0) => (float[N,9] log_duration, float[N,9,9] alignment, "
        "float[N,9,16] mel)",
        "g = MatMul(x, w0) a = Constant<value_ints=[2]>() log_duration = Squeeze(g, a) "
        "t = Transpose<perm=[0,2,1]>(x) s = MatMul(x, t) alignment = Softmax<axis=-1>(s) "
        "mel = MatMul(alignment, x)",
        {"log_duration": NUMBERS, "alignment": NUMBERS, "mel": NUMBERS},
    ),
    "detector with its selection": Network(
        "(float[1,20,4] boxes_in, float[1,2,20] s, float[4,3] w0) => "
        "(int64[K,3] selected, float[M,3] rows)",
        "selected = NonMaxSuppression(boxes_in, s) c = Constant<value_float=0.5>() "
        "a = Constant<value_ints=[0]>() f = Squeeze(boxes_in, a) o = Constant<value_ints=[1]>() "
        "l = ReduceMax<keepdims=0>(f, o) k = Greater(l, c) n = NonZero(k) "
        "p = Transpose<perm=[1,0]>(n) g = GatherND(f, p) rows = MatMul(g, w0)",
        {"selected": NOTHING, "rows": NOTHING},
    ),
    "transformer detector with the best queries": Network(
        "(float[N,40,16] x, float[16,1] w0, float[16,4] w1, float[16,5] w2) => "
        "(float[N,8,4] pred_boxes, float[N,8,5] logits)",
        "g = MatMul(x, w0) a = Constant<value_ints=[2]>() s = Squeeze(g, a) "
        "k = Constant<value_ints=[8]>() v, i = TopK<axis=1>(s, k) e = Unsqueeze(i, a) "
        "z = Constant<value_ints=[1,1,16]>() f = Expand(e, z) q = GatherElements<axis=1>(x, f) "
        "b = MatMul(q, w1) pred_boxes = Sigmoid(b) logits = MatMul(q, w2)",
        {"pred_boxes": NUMBERS, "logits": TOKEN},
    ),
}


def model_of(network: Network) -> onnx.ModelProto:
    """Return the ONNX model of a network, its weights drawn at random."""
    text = f'<ir_version: 10, opset_import: ["" : 18]> net {network.signature} {{{network.body}}}'
    model = parser.parse_model(text)
    generator = np.random.default_rng(0)
    for value in [v for v in model.graph.input if v.name.startswith("w")]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        weights = (generator.normal(size=shape) / np.sqrt(shape[-2])).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, value.name))
        model.graph.input.remove(value)
    if network.names:
        model.metadata_props.add(key="names", value=network.names)
    return model


def inputs_of(model: onnx.ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    """Return random inputs: `SAMPLES` for the open size of the batch, 7 for other open sizes."""
    generator = np.random.default_rng(1)
    sizes = {"N": SAMPLES, "T": 7}
    return {
        v.name: generator.normal(
            size=[d.dim_value or sizes[d.dim_param] for d in v.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for v in model.graph.input
    }
