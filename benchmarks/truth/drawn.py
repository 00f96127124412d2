"""Images, sounds, texts and bytes for the pools: drawn, or cut out of what libraries ship."""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

__all__ = [
    "LETTERS",
    "file_bytes",
    "images",
    "pages",
    "photo_crops",
    "photos",
    "speech",
    "speech_states",
    "strokes",
    "text_lines",
    "texts",
    "tones",
]

Arrays = dict[str, np.ndarray]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,-!?"


def images(name: str, size: int, rng: np.random.Generator, count: int) -> Arrays:
    """Smooth colours, a rectangle and noise, [count, 3, size, size], normalized."""
    coarse = torch.from_numpy(rng.normal(size=(count, 3, 5, 5)).astype(np.float32))
    fields = F.interpolate(coarse, (size, size), mode="bicubic", align_corners=False).numpy()
    corners, sides = rng.integers(0, size // 2, (count, 2)), rng.integers(4, size // 2, (count, 2))
    colours = rng.normal(size=(count, 3, 1, 1)) * 1.5
    for x, (top, left), (high, wide), colour in zip(fields, corners, sides, colours, strict=True):
        x[:, top : top + high, left : left + wide] = colour
    fields *= rng.lognormal(0, 0.3, (count, 1, 1, 1))
    return {name: (fields + 0.1 * rng.normal(size=fields.shape)).astype(np.float32)}


def strokes(rng: np.random.Generator, count: int) -> Arrays:
    """Lines of text-like strokes, [count, 1, 16, 64] in -1..1."""
    ink = rng.random((count, 1, 4, 16)) < 0.4
    lines = ink.repeat(4, 2).repeat(4, 3) * rng.uniform(0.4, 1, (count, 1, 1, 1))
    return {"x": (2 * lines - 1 + 0.1 * rng.normal(size=lines.shape)).astype(np.float32)}


def tones(rng: np.random.Generator, count: int) -> Arrays:
    """Frames of 1,024 samples at 16 kHz of voiced sounds and noise, normalized as CREPE does."""
    time = np.arange(1024) / 16000
    pitch = np.exp(rng.uniform(np.log(60), np.log(900), (count, 1)))
    x = rng.normal(size=(count, 1024)) * rng.lognormal(-2.5, 1, (count, 1))
    for harmonic in range(1, 9):
        loud = rng.uniform(0, 1, (count, 1)) / harmonic
        x += loud * np.sin(2 * np.pi * harmonic * pitch * time + rng.uniform(0, 6.28, (count, 1)))
    x -= x.mean(1, keepdims=True)
    return {"x": (x / np.maximum(x.std(1, keepdims=True), 1e-10)).astype(np.float32)}


@cache
def _photographs() -> list[np.ndarray]:
    """Three photographs, [height, width, 3] in 0..255."""
    from matplotlib import cbook
    from PIL import Image
    from sklearn.datasets import load_sample_images

    with cbook.get_sample_data("grace_hopper.jpg") as file:
        portrait = np.asarray(Image.open(file).convert("RGB"))
    return [*load_sample_images().images, portrait]


def _crop(rng: np.random.Generator, size: int, least: int) -> np.ndarray:
    """A square of a photograph, mirrored and brightened by chance, [size, size, 3] in 0..255."""
    from PIL import Image

    photo = _photographs()[rng.integers(3)]
    side = int(rng.integers(least, min(photo.shape[:2]) + 1))
    top, left = (int(rng.integers(n - side + 1)) for n in photo.shape[:2])
    part = Image.fromarray(photo[top : top + side, left : left + side]).resize((size, size))
    crop = np.asarray(part, dtype=np.float32)[:, :: rng.choice([-1, 1])]
    return np.clip(crop * rng.uniform(0.6, 1.3), 0, 255)


def photo_crops(name: str, size: int, rng: np.random.Generator, count: int) -> Arrays:
    """As MTCNN takes them: [count, size, size, 3] in -1..1."""
    crops = np.stack([_crop(rng, size, 24) for _ in range(count)])
    return {name: ((crops - 127.5) / 128).astype(np.float32)}


def photos(name: str, size: int, rng: np.random.Generator, count: int) -> Arrays:
    """[count, 3, size, size] in 0..1."""
    crops = np.stack([_crop(rng, size, 96) for _ in range(count)])
    return {name: np.ascontiguousarray(crops.transpose(0, 3, 1, 2) / 255, np.float32)}


@cache
def _font(size: int, style: str) -> object:
    from matplotlib import font_manager
    from PIL import ImageFont

    return ImageFont.truetype(font_manager.findfont(style), size)


def _word(rng: np.random.Generator, length: int) -> str:
    return "".join(rng.choice(list(LETTERS), length))


def text_lines(high: int, wide: int, rng: np.random.Generator, count: int) -> Arrays:
    """Rendered lines as PP-OCR takes them, one in three upside down: [count, 3, high, wide]."""
    from PIL import Image, ImageDraw

    lines = []
    for _ in range(count):
        paper, ink = rng.integers(150, 256, 3), rng.integers(0, 110, 3)
        line = Image.new("RGB", (wide, high), tuple(int(v) for v in paper))
        style = str(rng.choice(["DejaVu Sans", "DejaVu Serif", "DejaVu Sans Mono"]))
        font = _font(int(rng.integers(high // 3, high * 2 // 3)), style)
        text = _word(rng, int(rng.integers(4, 14)))
        place = (int(rng.integers(2, 12)), int(rng.integers(0, high // 4)))
        ImageDraw.Draw(line).text(place, text, tuple(int(v) for v in ink), font)
        pixels = np.asarray(line, dtype=np.float32) + rng.normal(size=(high, wide, 3)) * 6
        lines.append(pixels[::-1, ::-1] if rng.random() < 1 / 3 else pixels)
    x = np.clip(np.stack(lines), 0, 255).transpose(0, 3, 1, 2)
    return {"x": ((x / 255 - 0.5) / 0.5).astype(np.float32)}


def pages(size: int, rng: np.random.Generator, count: int) -> Arrays:
    """Words over photographs, normalized as PP-OCR's detector takes them."""
    from PIL import Image, ImageDraw

    x = []
    for _ in range(count):
        page = Image.fromarray(_crop(rng, size, 96).astype(np.uint8))
        draw = ImageDraw.Draw(page)
        for _ in range(rng.integers(1, 6)):
            place = tuple(int(v) for v in rng.integers(0, size * 3 // 4, 2))
            font = _font(int(rng.integers(10, 28)), "DejaVu Sans")
            colour = tuple(int(v) for v in rng.integers(0, 256, 3))
            draw.text(place, _word(rng, int(rng.integers(3, 9))), colour, font)
        x.append(np.asarray(page, dtype=np.float32))
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    pixels = ((np.stack(x) / 255 - mean) / std).transpose(0, 3, 1, 2)
    return {"x": np.ascontiguousarray(pixels, np.float32)}


def file_bytes(rng: np.random.Generator, count: int) -> Arrays:
    """Files of the standard library and of installed packages as magika reads them: the first and
    the last 1,024 bytes, 256 where there are fewer."""
    folders = [Path(sysconfig.get_paths()[k]) for k in ("stdlib", "purelib")]
    files = sorted({p for f in folders for p in f.glob("*/**/*") if p.suffix != ".pyc"})
    rows: list[np.ndarray] = []
    for i in rng.permutation(len(files)):
        if len(rows) == count:
            break
        if files[i].is_file() and files[i].stat().st_size > 64:
            data = files[i].read_bytes()[: 1 << 20].strip()
            row = np.full(2048, 256, np.int32)
            head, tail = (np.frombuffer(d, np.uint8) for d in (data[:1024], data[-1024:]))
            row[: len(head)] = head
            row[2048 - len(tail) :] = tail
            rows.append(row)
    return {"bytes": np.stack(rows)}


def texts(rng: np.random.Generator, count: int) -> Arrays:
    """Pieces of the manual of Python, of 60 to 200 characters."""
    from pydoc_data.topics import topics

    text = " ".join(" ".join(topics[k].split()) for k in sorted(topics))
    starts = rng.permutation(len(text) // 200 - 1)[:count] * 200
    sizes = rng.integers(60, 200, count)
    return {"text": np.array([text[a : a + n] for a, n in zip(starts, sizes, strict=True)])}


def speech_states(file: Path, rng: np.random.Generator, count: int) -> Arrays:
    """Windows of voiced sounds, pauses and noise, and the state that Silero VAD has in front of
    each: "input" [count, 1, 576], "state" [count, 2, 1, 128]."""
    import onnxruntime

    vad = onnxruntime.InferenceSession(str(file))
    windows = -(-count // 8)
    inputs, states = [], []
    for _ in range(8):  # streams
        stream = speech(rng, 512 * windows + 64)
        state = np.zeros((2, 1, 128), np.float32)
        for i in range(windows):
            x = stream[512 * i : 512 * i + 576][None]
            inputs.append(x)
            states.append(state)
            state = vad.run(None, {"input": x, "state": state})[1]
    return {"input": np.stack(inputs)[:count], "state": np.stack(states)[:count]}


def speech(rng: np.random.Generator, samples: int) -> np.ndarray:
    """Syllables of harmonic tones with formants, between pauses, at 16 kHz."""
    time = np.arange(samples) / 16000
    pitch = 120 * 2 ** rng.uniform(-0.5, 1) * (1 + 0.1 * np.sin(time * rng.uniform(2, 9)))
    phase = 2 * np.pi * np.cumsum(pitch) / 16000
    formants = rng.uniform([300, 900, 2200], [800, 2000, 3000])
    voice = np.zeros(samples)
    for harmonic in range(1, 25):
        far = (harmonic * pitch.mean() - formants) / 150
        voice += (np.exp(-(far**2)).sum() + 0.05) * np.sin(harmonic * phase)
    syllables = np.repeat(rng.random(samples // 2000 + 1) < 0.6, 2000)[:samples]
    loud = np.convolve(syllables, np.ones(400) / 400, "same") * rng.uniform(0.02, 0.15)
    return (voice * loud + rng.normal(size=samples) * rng.uniform(0.0005, 0.02)).astype(np.float32)
