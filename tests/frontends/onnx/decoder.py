"""A decoder of one layer as onnxruntime-genai's builder writes them, of contrib operators."""

import numpy as np
import onnx
from onnx import numpy_helper

WORDS, WIDTH, HEADS, GROUPS, HEAD, INNER, LONGEST = 48, 32, 4, 2, 8, 64, 32
_TEXT = f"""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
g (int64[B,S] input_ids, int64[B,T] attention_mask, int64[B,S] position_ids,
   float[B,{GROUPS},P,{HEAD}] past_key, float[B,{GROUPS},P,{HEAD}] past_value)
=> (float[B,S,{WORDS}] logits, float[B,{GROUPS},T,{HEAD}] present_key,
    float[B,{GROUPS},T,{HEAD}] present_value) {{
    one = Constant <value = int64[1] {{1}}> ()
    at = Constant <value = int64 {{1}}> ()
    length = ReduceSum <keepdims = 0> (attention_mask, one)
    less = Sub (length, one)
    seqlens = Cast <to = 6> (less)
    size = Shape (attention_mask)
    total = Gather <axis = 0> (size, at)
    total32 = Cast <to = 6> (total)
    h = Gather (embed, input_ids)
    n0 = SimplifiedLayerNormalization <epsilon = 0.00001, axis = -1> (h, gamma)
    q = MatMul (n0, wq)
    k = MatMul (n0, wk)
    v = MatMul (n0, wv)
    q2 = com.microsoft.RotaryEmbedding <num_heads = {HEADS}> (q, position_ids, cos, sin)
    k2 = com.microsoft.RotaryEmbedding <num_heads = {GROUPS}> (k, position_ids, cos, sin)
    a, present_key, present_value = com.microsoft.GroupQueryAttention
        <num_heads = {HEADS}, kv_num_heads = {GROUPS}>
        (q2, k2, v, past_key, past_value, seqlens, total32)
    o = MatMul (a, wo)
    n1, m1, s1, h1 = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.00001>
        (h, o, gamma)
    gate = MatMul (n1, wg)
    up = com.microsoft.MatMulNBits <K = {WIDTH}, N = {INNER}, bits = 4, block_size = 32>
        (n1, codes, scales)
    sig = Sigmoid (gate)
    act = Mul (gate, sig)
    both = Mul (act, up)
    down = MatMul (both, wd)
    n2, m2, s2, h2 = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.00001>
        (h1, down, gamma)
    logits = MatMul (n2, head)
}}"""


def contrib_decoder() -> onnx.ModelProto:
    model = onnx.parser.parse_model(_TEXT)
    random = np.random.default_rng(0)
    for node in model.graph.node:  # what nobody reads is left out of a file
        if node.op_type.startswith("Skip"):
            node.output[1:3] = ["", ""]
    turns = np.arange(LONGEST)[:, None] / 10 ** (np.arange(HEAD // 2) / 2)
    small = GROUPS * HEAD
    arrays = {
        "embed": random.normal(size=(WORDS, WIDTH)),
        "gamma": random.uniform(0.5, 1.5, WIDTH),
        "wq": random.normal(size=(WIDTH, WIDTH)) / 6,
        "wk": random.normal(size=(WIDTH, small)) / 6,
        "wv": random.normal(size=(WIDTH, small)) / 6,
        "wo": random.normal(size=(WIDTH, WIDTH)) / 6,
        "wg": random.normal(size=(WIDTH, INNER)) / 6,
        "wd": random.normal(size=(INNER, WIDTH)) / 8,
        "head": random.normal(size=(WIDTH, WORDS)) / 6,
        "cos": np.cos(turns),
        "sin": np.sin(turns),
        "scales": random.uniform(0.02, 0.05, INNER),
    }
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    codes = random.integers(0, 256, (INNER, 1, 16), dtype=np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(codes, "codes"))
    return model


def call(new: int, past: int, batch: int = 1) -> dict[str, np.ndarray]:
    """Inputs of `new` tokens behind `past` ones. The kernel takes one text where there are several
    of both."""
    random = np.random.default_rng(new)
    caches = random.normal(size=(2, batch, GROUPS, past, HEAD)).astype(np.float32)
    return {
        "input_ids": random.integers(0, WORDS, (batch, new)),
        "attention_mask": np.ones((batch, past + new), np.int64),
        "position_ids": np.tile(np.arange(past, past + new), (batch, 1)),
        "past_key": caches[0],
        "past_value": caches[1],
    }
