"""One command writes a folder that the libraries load, and they compute what the file computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from click.testing import CliRunner
from qtool.cli import main

import qtool
from qtool.core.option_names import FOLDER_LAYOUTS
from qtool.frontends.huggingface.folder_layout import GENAI, JS, LAYOUTS, OPTIMUM, SENTENCES
from tests.frontends.conftest import RATE, TEXTS, save_lines, save_sound
from tests.frontends.huggingface.test_encoder_decoder import t5_model, whisper
from tests.frontends.huggingface.test_fused_decoder import FAMILIES, WIDE, model_of
from tests.frontends.huggingface.test_model_folder import SMALL, tokenizer
from tests.named_cases import cases
from tests.passes.test_experts import EXPERTS

library = pytest.importorskip("transformers")
HERE = Path(__file__).parent
PYTHON = os.environ.get("QTOOL_CONSUMERS_PYTHON", sys.executable)
NEW = 12
SOUND = (np.random.default_rng(7).normal(size=RATE // 8) * 0.1).astype(np.float32)
Arrays = dict[str, np.ndarray[Any, Any]]

# --- models, and the command for each -------------------------------------------------------------


def bert(folder: Path) -> None:
    torch.manual_seed(0)
    config = library.BertConfig(vocab_size=len(tokenizer(library)), **SMALL, num_labels=3)
    library.BertForSequenceClassification(config).save_pretrained(folder)


def minilm(folder: Path) -> None:
    torch.manual_seed(0)
    config = library.BertConfig(vocab_size=len(tokenizer(library)), **SMALL)
    library.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    prefix = "sentence_transformers.models."
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": prefix + name}
        for i, (path, name) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def llama(folder: Path) -> None:
    model_of("Llama").save_pretrained(folder)


def t5(folder: Path) -> None:
    model, _ = t5_model(vocab_size=len(tokenizer(library)))
    model.save_pretrained(folder)


def speech(folder: Path) -> None:
    model, _ = whisper(vocab_size=len(tokenizer(library)), max_source_positions=1500)
    model.save_pretrained(folder)  # 30 s, since onnxruntime-genai takes 3,000 frames and no others
    library.WhisperFeatureExtractor(feature_size=8).save_pretrained(folder)


MODELS: dict[str, tuple[Callable[[Path], None], list[str]]] = {
    "bert": (bert, []),
    "minilm": (minilm, []),
    "llama": (llama, ["--task", "text-generation-with-past", "--mode", "weight-only-int4"]),
    "t5": (t5, ["--task", "text2text-generation-with-past", "--mode", "weight-only"]),
    "whisper": (speech, ["--task", "automatic-speech-recognition-with-past"]),
}


def convert(source: Path, out: Path, data: Path, *more: str) -> Path:
    line = ["quantize", str(source), "--data", str(data), "-o", str(out), "--seconds", "0", *more]
    result = CliRunner().invoke(main, line)
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, and a folder of sounds with texts."""
    root = tmp_path_factory.mktemp("data")
    (root / "texts.txt").write_text("\n".join(TEXTS))
    for index in range(len(TEXTS)):
        save_sound(root / "sounds" / f"{index}.wav", index)
    rows = [{"file_name": f"{i}.wav", "text": text} for i, text in enumerate(TEXTS)]
    save_lines(root / "sounds" / "metadata.jsonl", rows)
    return root


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a float model, written once."""
    root = tmp_path_factory.mktemp("folders")

    def make(name: str) -> Path:
        place = root / name / "model"
        if not place.exists():
            place.mkdir(parents=True)
            MODELS[name][0](place)
            tokenizer(library).save_pretrained(place)
            settings = place / "tokenizer_config.json"  # with a class that transformers 4 knows
            plain = {"tokenizer_class": "PreTrainedTokenizerFast"}
            settings.write_text(json.dumps(json.loads(settings.read_text()) | plain))
        return place

    return make


@pytest.fixture(scope="module")
def folder(source: Make, data: Path) -> Callable[[str], Path]:
    """The folder of a model in the layout that all libraries share, written once."""

    def make(name: str) -> Path:
        out = source(name).with_name("out")
        if not out.exists():
            texts = data / ("sounds" if name == "whisper" else "texts.txt")
            convert(source(name), out, texts, *MODELS[name][1])
        return out

    return make


# --- what the files compute -----------------------------------------------------------------------


def session(folder: Path, part: str = "model") -> ort.InferenceSession:
    (path,) = folder.glob(f"**/{part}*.onnx")
    return ort.InferenceSession(path)


def outputs(folder: Path, text: str) -> np.ndarray[Any, Any]:
    """The first output [tokens or classes, ...] for a text."""
    run = session(folder)
    names = {i.name for i in run.get_inputs()}
    ids = library.AutoTokenizer.from_pretrained(folder)(text, return_tensors="np")
    return run.run(None, {k: v for k, v in ids.items() if k in names})[0][0]


def embedding(folder: Path, text: str) -> np.ndarray[Any, Any]:
    mean = outputs(folder, text).mean(0)
    return mean / np.linalg.norm(mean)


def probabilities(folder: Path, text: str) -> np.ndarray[Any, Any]:
    exact = np.exp(outputs(folder, text))
    return exact / exact.sum()


def written(folder: Path, inputs: Arrays, ends: int) -> list[int]:
    """Tokens of encoder and decoder behind the start token, until one that ends texts."""
    encoder, decoder = session(folder, "encoder_model"), session(folder, "decoder_model")
    names = {i.name for i in encoder.get_inputs()}
    (states,) = encoder.run(None, {k: v for k, v in inputs.items() if k in names})
    fixed = {"encoder_hidden_states": states}
    taken = {i.name: i for i in decoder.get_inputs()}
    if "encoder_attention_mask" in taken:
        fixed["encoder_attention_mask"] = inputs["attention_mask"]
    past = {
        name: np.zeros((1, i.shape[1], 0, i.shape[3]), np.float32)
        for name, i in taken.items()
        if name.startswith("past")
    }
    start = json.loads((folder / "config.json").read_text())["decoder_start_token_id"]
    tokens = [start]
    while len(tokens) <= NEW and tokens[-1] != ends:
        new = {"input_ids": np.array([tokens[-1:]])}
        logits, *present = decoder.run(None, {**new, **fixed, **past})
        past = dict(zip(past, present, strict=True))
        tokens.append(int(logits[0, -1].argmax()))
    return tokens


def features(folder: Path) -> Arrays:
    heard = library.WhisperFeatureExtractor.from_pretrained(folder)
    return dict(heard(SOUND, sampling_rate=RATE, return_tensors="np"))


def text_inputs(folder: Path, text: str) -> Arrays:
    return dict(library.AutoTokenizer.from_pretrained(folder)(text, return_tensors="np"))


def ids(folder: Path, text: str) -> list[int]:
    return text_inputs(folder, text)["input_ids"][0].tolist()


def continuation(folder: Path, text: str) -> tuple[int, ...]:
    (file,) = folder.glob("**/*.onnx")
    return qtool.generate(file, text, tokens=NEW).tokens


# --- the libraries --------------------------------------------------------------------------------

IMPORTS = {
    OPTIMUM: "import optimum.onnxruntime; optimum.onnxruntime.ORTModelForCausalLM",
    SENTENCES: "import sentence_transformers, optimum.onnxruntime",
    GENAI: "import onnxruntime_genai",
}


def run(
    command: list[str], text: str = "", timeout: float = 120
) -> subprocess.CompletedProcess[str] | None:
    """Run a program that reads a text; None if there is none."""
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=timeout, check=False
        )
    except OSError:
        return None


@cache
def missing(consumer: str) -> str | None:
    """Return why a library cannot be tested."""
    if consumer == JS:
        command = ["node", "-e", "require.resolve('@huggingface/transformers')"]
        advice = "npm install it, and name its node_modules in NODE_PATH"
    else:
        command = [PYTHON, "-W", "ignore", "-c", IMPORTS[consumer]]
        advice = "install it, or name the Python that has it in QTOOL_CONSUMERS_PYTHON"
    result = run(command)
    return None if result and not result.returncode else f"needs {consumer}: {advice}"


def compute(consumer: str, folder: Path, **given: Any) -> Any:
    """Return what a library computes with a folder."""
    if consumer == JS:
        command = ["node", str(HERE / "transformers_js.cjs")]
    else:
        command = [PYTHON, "-W", "ignore", str(HERE / "python_consumers.py"), consumer]
    result = run([*command, str(folder)], json.dumps(given))
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout.splitlines()[-1])


def need(consumer: str) -> None:
    """Skip the test where a library is not installed."""
    if reason := missing(consumer):
        pytest.skip(reason)


Make = Callable[[str], Path]
NEAR: dict[str, float] = {"rtol": 0, "atol": 1e-5}


@pytest.mark.matrix
def test_transformers_js_classifies(folder: Make) -> None:
    need(JS)
    out = folder("bert")
    made = compute(JS, out, task="text-classification", texts=TEXTS)
    for rows, text in zip(made, TEXTS, strict=True):
        scores = {row["label"]: row["score"] for row in rows}
        found = [scores[f"LABEL_{i}"] for i in range(3)]
        np.testing.assert_allclose(found, probabilities(out, text), **NEAR)


@pytest.mark.matrix
def test_transformers_js_embeds(folder: Make) -> None:
    need(JS)
    out = folder("minilm")
    (made,) = compute(JS, out, task="feature-extraction", texts=TEXTS[:1])
    np.testing.assert_allclose(made, embedding(out, TEXTS[0]), **NEAR)


@pytest.mark.matrix
def test_transformers_js_writes(folder: Make) -> None:
    need(JS)
    out = folder("llama")
    made = compute(JS, out, task="text-generation", texts=TEXTS, tokens=NEW)
    for tokens, text in zip(made, TEXTS, strict=True):
        assert tokens == [*ids(out, text), *continuation(out, text)]


@pytest.mark.matrix
def test_transformers_js_reads_and_writes(folder: Make) -> None:
    need(JS)
    out = folder("t5")
    made = compute(JS, out, task="text2text-generation", texts=TEXTS, tokens=NEW)
    assert made == [written(out, text_inputs(out, text), ends=1) for text in TEXTS]
    assert len({tuple(tokens) for tokens in made}) > 1


@pytest.mark.matrix
def test_transformers_js_hears(folder: Make) -> None:
    need(JS)
    out = folder("whisper")
    task = "automatic-speech-recognition"
    made = compute(JS, out, task=task, sound=SOUND.tolist(), tokens=NEW)
    expected = features(out)["input_features"]
    heard = np.array(made["features"], np.float32).reshape(expected.shape)
    np.testing.assert_allclose(heard, expected, rtol=0, atol=1e-3)
    assert made["ids"] == written(out, {"input_features": heard}, ends=2)


@pytest.mark.matrix
def test_optimum_classifies(folder: Make) -> None:
    need(OPTIMUM)
    out = folder("bert")
    name = "ORTModelForSequenceClassification"
    made = compute(OPTIMUM, out, ids=ids(out, TEXTS[0]), **{"class": name})
    np.testing.assert_allclose(made, outputs(out, TEXTS[0]), **NEAR)


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["shared", OPTIMUM])
def test_optimum_writes(layout: str, folder: Make, data: Path, tmp_path: Path) -> None:
    need(OPTIMUM)
    out = folder("llama")
    if layout != "shared":
        source, line = out.with_name("model"), MODELS["llama"][1]
        out = convert(source, tmp_path / "out", data / "texts.txt", *line, "--layout", layout)
    given = {"class": "ORTModelForCausalLM", "ids": ids(out, TEXTS[0]), "tokens": NEW}
    made = compute(OPTIMUM, out, **given)
    assert made == [*ids(out, TEXTS[0]), *continuation(out, TEXTS[0])]


@pytest.mark.matrix
def test_optimum_reads_and_writes(folder: Make) -> None:
    need(OPTIMUM)
    out = folder("t5")
    given = {"class": "ORTModelForSeq2SeqLM", "ids": ids(out, TEXTS[0]), "tokens": NEW}
    expected = written(out, text_inputs(out, TEXTS[0]), ends=1)
    assert compute(OPTIMUM, out, **given) == expected


@pytest.mark.matrix
def test_optimum_hears(folder: Make) -> None:
    need(OPTIMUM)
    out = folder("whisper")
    heard = features(out)
    given = {"class": "ORTModelForSpeechSeq2Seq", "tokens": NEW}
    made = compute(OPTIMUM, out, features=heard["input_features"].tolist(), **given)
    expected = written(out, heard, ends=2)
    assert made in (expected, expected[1:])  # Optimum leaves out the start token


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["shared", SENTENCES])
def test_sentence_transformers_embeds(
    layout: str, folder: Make, data: Path, tmp_path: Path
) -> None:
    need(SENTENCES)
    out, named = folder("minilm"), {"file": "onnx/model_quantized.onnx"}
    if layout != "shared":
        source, named = out.with_name("model"), {}
        out = convert(source, tmp_path / "out", data / "texts.txt", "--layout", layout)
    for made, text in zip(compute(SENTENCES, out, texts=TEXTS, **named), TEXTS, strict=True):
        np.testing.assert_allclose(made, embedding(out, text), **NEAR)


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["shared", GENAI])
def test_genai_writes(layout: str, folder: Make, data: Path, tmp_path: Path) -> None:
    need(GENAI)
    out = folder("llama")
    if layout != "shared":
        source, line = out.with_name("model"), MODELS["llama"][1]
        out = convert(source, tmp_path / "out", data / "texts.txt", *line, "--layout", layout)
    made = compute(GENAI, out, ids=ids(out, TEXTS[0]), tokens=NEW)
    assert made == list(continuation(out, TEXTS[0]))[: len(made)]


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["shared", GENAI])
def test_genai_hears(layout: str, folder: Make, data: Path, tmp_path: Path) -> None:
    need(GENAI)
    out = folder("whisper")
    if layout != "shared":
        source, line = out.with_name("model"), MODELS["whisper"][1]
        out = convert(source, tmp_path / "out", data / "sounds", *line, "--layout", layout)
    heard = features(out)
    made = compute(GENAI, out, ids=[1], features=heard["input_features"].tolist(), tokens=NEW)
    assert made == written(out, heard, ends=2)[1 : 1 + len(made)]
    assert len(made) > 1


# --- which language models they load ------------------------------------------------------------

SMALL_GPT: dict[str, Any] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
LOADED: dict[str, tuple[str, ...]] = {
    "Llama": (GENAI, OPTIMUM, JS),
    "Mistral": (GENAI, OPTIMUM, JS),
    "Qwen3": (GENAI, OPTIMUM, JS),
    "Gemma3Text": (GENAI, OPTIMUM, JS),
    "Granite": (GENAI, OPTIMUM, JS),
    "Phi3": (GENAI, JS),  # Optimum makes a cache of all heads
    "Gemma2": (GENAI, JS),
    "Starcoder2": (JS,),
    "Olmo3": (JS,),
    "GPT2": (OPTIMUM, JS),
    "Mixtral": (GENAI,),  # as a Mistral, which has equal inputs and outputs
    "Qwen3Moe": (GENAI, OPTIMUM, JS),
}
"""Architecture -> libraries that load it, as tried with each."""


def architecture(name: str) -> Any:
    torch.manual_seed(0)
    if name in FAMILIES:
        return model_of(name)
    sizes = SMALL_GPT if name == "GPT2" else {**WIDE, "num_key_value_heads": 2}
    more = EXPERTS.get(name, {}) | ({"num_experts_per_tok": 2} if name in EXPERTS else {})
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    words = {"vocab_size": len(tokenizer(library))}
    config = getattr(library, f"{name}Config")(**{**sizes, **more, **ends, **words})
    head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    return getattr(library, f"{name}{head}")(config).eval()


@pytest.mark.matrix
@pytest.mark.parametrize("name", [name for name, consumers in LOADED.items() if consumers])
def test_libraries_load_decoders(name: str, data: Path, tmp_path: Path) -> None:
    tried = [c for c in LOADED[name] if not missing(c)]
    if not tried:
        pytest.skip(f"none of {', '.join(LOADED[name])} is installed")
    source, out = tmp_path / "model", tmp_path / "out"
    architecture(name).save_pretrained(source)
    tokenizer(library).save_pretrained(source)
    line = ["--task", "text-generation-with-past", "--mode", "weight-only"]
    convert(source, out, data / "texts.txt", *line)
    prompt = tokenizer(library)(TEXTS[0])["input_ids"]
    expected = list(continuation(out, TEXTS[0]))
    assert ids(out, TEXTS[0]) == prompt
    calls: dict[str, dict[str, Any]] = {
        GENAI: {"ids": prompt},
        OPTIMUM: {"ids": prompt, "class": "ORTModelForCausalLM"},
        JS: {"task": "text-generation", "texts": TEXTS[:1]},
    }
    for consumer in tried:
        made = compute(consumer, out, tokens=NEW, **calls[consumer])
        made = made[0] if consumer == JS else made
        new = made if consumer == GENAI else made[len(prompt) :]
        assert new == expected[: len(new)], consumer
        assert len(expected) - len(new) in (0, 1)  # an end may be left out


# --- in Python ------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_call_writes_the_folder_of_the_command(
    source: Make, folder: Make, data: Path, tmp_path: Path
) -> None:
    untimed, texts = qtool.FileOptions(timing=0), data / "texts.txt"
    file = qtool.quantize_to_file(source("bert"), texts, tmp_path / "out", file=untimed)
    command = folder("bert")
    names = {p.relative_to(command) for p in command.rglob("*") if p.is_file()}
    assert names == {p.relative_to(tmp_path / "out") for p in (tmp_path / "out").rglob("*.*")}
    assert (
        file.path.read_bytes() == (command / file.path.relative_to(tmp_path / "out")).read_bytes()
    )
    alone = qtool.quantize_to_file(source("bert"), texts, tmp_path / "m.onnx", file=untimed)
    assert alone.path.read_bytes() == file.path.read_bytes()
    assert (tmp_path / "config.json").is_file()


# --- what is refused ------------------------------------------------------------------------------


@cases(
    "line, sentence",
    (["-o", "out", "--layout", GENAI], "genai does not load this model"),
    (["-o", "out.onnx", "--layout", OPTIMUM], "is a folder of several files; name it, as "),
    (["-o", "out.onnx", "--task", "text2text-generation-with-past"], "becomes two files"),
)
def test_what_no_folder_can_be(
    line: list[str], sentence: str, source: Make, data: Path, tmp_path: Path
) -> None:
    end = [str(tmp_path / part) if part.startswith("out") else part for part in line]
    more = [] if "--task" in line else ["--task", "text2text-generation-with-past"]
    command = ["quantize", str(source("t5")), "--data", str(data / "texts.txt"), *end, *more]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2, result.output
    assert sentence in result.output


def test_a_call_refuses_one_file_for_two_parts(source: Make, data: Path, tmp_path: Path) -> None:
    task = "text2text-generation-with-past"
    line = (source("t5"), data / "texts.txt", tmp_path / "m.onnx")
    with pytest.raises(qtool.OptionError, match=r"becomes two files; call .*quantize_to_files, or"):
        qtool.quantize_to_file(*line, task=task)
    with pytest.raises(qtool.OptionError, match="two files with this task; name a folder"):
        qtool.quantize_to_files(*line, task=task)


@pytest.mark.matrix
def test_each_layout_has_its_files(folder: Make) -> None:
    shared = {str(p.relative_to(folder("llama"))) for p in folder("llama").rglob("*.*")}
    assert {"onnx/model_q4.onnx", "genai_config.json", "quantize_config.json"} <= shared
    assert {"config.json", "generation_config.json", "tokenizer.json"} <= shared
    config = json.loads((folder("llama") / "config.json").read_text())
    assert config["transformers.js_config"] == {"dtype": "q4"}
    assert set(FOLDER_LAYOUTS) == set(LAYOUTS)
