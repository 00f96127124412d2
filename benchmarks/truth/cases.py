"""The cases of the truth audit: frozen rows, written before any of them was measured.

A row may be added; none is changed or removed because of what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["CASES", "Case"]

FILES = ("tflite", "tflite-micro")
SHORT = {"onnxruntime": "", "onnxruntime-web": "web"}


@dataclass(frozen=True)
class Case:
    """One command, and the pool of samples that it is measured on.

    Attributes:
        network: a name in `pools.POOLS`.
        form: what qtool is given. "torch": a module; "onnx": what torch.onnx writes of it, batch
            dynamic; "onnx-1": the same with a fixed batch of 1; "file": an ONNX file of a package;
            "folder": a transformers folder.
        calibration, new: samples of the pool, split at random by `seed`.
        mode, target, accuracy: options of the command; "" is its default, not given.
        batch: samples of a calibration batch.
        memory: for `--memory`; "" leaves it out.
    """

    network: str
    form: str
    calibration: int
    seed: int
    mode: str = ""
    target: str = ""
    accuracy: str = ""
    batch: int = 32
    memory: str = ""
    new: int = 1000

    @property
    def name(self) -> str:
        """Unique, and a file name."""
        target = SHORT.get(self.target, self.target)
        blocks = "blocks" if self.memory else ""
        words = (self.network, self.form, self.mode, target, self.accuracy, blocks)
        size = f"n{self.calibration}" + (f"b{self.batch}" if self.batch != 32 else "")
        return ".".join([*(w for w in words if w), size, f"s{self.seed}"])

    @property
    def suffix(self) -> str:
        return "tflite" if self.target in FILES else "onnx"


WEB, TFLITE = "onnxruntime-web", "tflite"
DYNAMIC, WEIGHTS, INT4 = "dynamic", "weight-only", "weight-only-int4"
BLOCKS = "64KiB"  # below what any network here needs as a whole


def _tabular() -> Iterator[Case]:
    yield Case("numbers", "torch", 512, 1)
    yield Case("numbers", "torch", 512, 2, accuracy="fast")
    yield Case("numbers", "onnx", 2000, 3)
    yield Case("numbers", "onnx-1", 256, 4)
    yield Case("numbers", "torch", 256, 5, DYNAMIC)
    yield Case("numbers", "torch", 512, 6, target=TFLITE)
    yield Case("numbers", "torch", 48, 7)
    yield Case("numbers", "onnx", 512, 8, memory=BLOCKS)
    yield Case("embeddings", "torch", 512, 1)
    yield Case("embeddings", "torch", 512, 2, accuracy="fast")
    yield Case("embeddings", "onnx", 2000, 3)
    yield Case("embeddings", "torch", 256, 4, WEIGHTS)
    yield Case("embeddings", "torch", 512, 5, target=TFLITE)
    yield Case("embeddings", "torch", 256, 6, accuracy="best")
    yield Case("heavy_tails", "torch", 512, 1)
    yield Case("heavy_tails", "onnx", 2000, 2)
    yield Case("heavy_tails", "torch", 256, 3, DYNAMIC)
    yield Case("heavy_tails", "onnx", 256, 4, target=WEB)
    yield Case("heavy_tails", "torch", 24, 5)
    yield Case("wide_scales", "torch", 256, 1)
    yield Case("wide_scales", "onnx-1", 256, 2)
    yield Case("wide_scales", "torch", 256, 3, INT4)
    yield Case("wide_scales", "onnx", 256, 4, memory=BLOCKS)
    yield Case("residual_mlp", "torch", 256, 1)
    yield Case("residual_mlp", "torch", 256, 2, target=TFLITE)
    yield Case("residual_mlp", "onnx", 256, 3, DYNAMIC)
    yield Case("autoencoder", "torch", 256, 1)
    yield Case("autoencoder", "torch", 256, 2, target=WEB, accuracy="fast")
    yield Case("autoencoder", "onnx", 64, 3)


def _signals() -> Iterator[Case]:
    yield Case("tcn", "torch", 256, 1)
    yield Case("tcn", "onnx-1", 256, 2)
    yield Case("tcn", "torch", 256, 3, target=TFLITE)
    yield Case("padded_conv", "torch", 96, 1)
    yield Case("padded_conv", "onnx", 96, 2)
    yield Case("keywords", "torch", 128, 1)
    yield Case("keywords", "torch", 128, 2, target=TFLITE)
    yield Case("keywords", "onnx-1", 128, 3)
    yield Case("lstm", "torch", 256, 1)
    yield Case("lstm", "torch", 256, 2, DYNAMIC)
    yield Case("lstm", "onnx", 256, 3, DYNAMIC)
    yield Case("lstm", "torch", 256, 4, target=WEB)
    yield Case("lstm_tails", "torch", 128, 1)
    yield Case("lstm_tails", "torch", 128, 2, DYNAMIC)
    yield Case("gru", "torch", 256, 1)
    yield Case("gru", "torch", 256, 2, DYNAMIC)
    yield Case("gru", "onnx", 1000, 3)
    yield Case("gru", "torch", 256, 4, WEIGHTS)
    yield Case("crnn", "onnx", 128, 1)
    yield Case("crnn", "torch", 128, 2, DYNAMIC)
    yield Case("tagger", "torch", 256, 1)
    yield Case("tagger", "torch", 256, 2, DYNAMIC)


def _images() -> Iterator[Case]:
    yield Case("small_cnn", "torch", 256, 1)
    yield Case("small_cnn", "onnx-1", 256, 2)
    yield Case("small_cnn", "torch", 256, 3, target=TFLITE)
    yield Case("small_cnn", "torch", 128, 4, accuracy="best")
    yield Case("small_cnn", "torch", 24, 5)
    yield Case("small_cnn", "onnx", 2000, 6, accuracy="fast")
    yield Case("small_cnn", "onnx", 256, 7, memory=BLOCKS)
    yield Case("squeeze_excite", "torch", 256, 1)
    yield Case("squeeze_excite", "torch", 256, 2, target=WEB)
    yield Case("squeeze_excite", "torch", 256, 3, target=TFLITE, accuracy="fast")
    yield Case("mobile_cnn", "torch", 256, 1)
    yield Case("mobile_cnn", "onnx-1", 256, 2)
    yield Case("mobile_cnn", "torch", 256, 3, batch=1)
    yield Case("any_size_cnn", "onnx", 128, 1)
    yield Case("any_size_cnn", "torch", 128, 2, DYNAMIC)
    yield Case("unet", "torch", 96, 1)
    yield Case("unet", "onnx-1", 64, 2)
    yield Case("unet", "torch", 96, 3, target=WEB)
    yield Case("generator", "torch", 256, 1)
    yield Case("digits", "torch", 200, 1)
    yield Case("digits", "torch", 200, 2, WEIGHTS)
    yield Case("digits", "onnx", 200, 3, memory=BLOCKS)
    yield Case("resnet20", "torch", 256, 1)
    yield Case("resnet20", "torch", 512, 2, accuracy="fast")
    yield Case("mobilenetv2_w05", "torch", 256, 1)
    yield Case("mobilenetv2_w05", "onnx-1", 256, 2)
    yield Case("mobilenetv2_w05", "torch", 256, 3, target=TFLITE)
    yield Case("densenet40", "torch", 128, 1, accuracy="fast")
    yield Case("kws", "torch", 200, 1, new=800)
    yield Case("kws", "torch", 200, 2, target=TFLITE, new=800)
    yield Case("kws", "torch", 200, 3, DYNAMIC, new=800)
    yield Case("mini_yolo", "torch", 96, 1)
    yield Case("mini_yolo", "onnx-1", 96, 2)
    yield Case("mini_yolo", "torch", 96, 3, target=WEB)
    yield Case("digit_detector", "torch", 128, 1)
    yield Case("digit_detector", "torch", 128, 2, target=TFLITE)
    yield Case("digit_detector", "onnx", 48, 3, accuracy="fast")


def _texts() -> Iterator[Case]:
    yield Case("tiny_vit", "torch", 128, 1)
    yield Case("tiny_vit", "torch", 128, 2, DYNAMIC)
    yield Case("tiny_vit", "onnx", 256, 3, accuracy="fast")
    yield Case("encoder", "torch", 256, 1)
    yield Case("encoder", "torch", 256, 2, DYNAMIC)
    yield Case("encoder", "torch", 256, 3, INT4)
    yield Case("encoder", "onnx-1", 128, 4)
    yield Case("sentence_encoder", "folder", 128, 1)
    yield Case("sentence_encoder", "folder", 128, 2, DYNAMIC)
    yield Case("sentence_encoder", "folder", 128, 3, INT4)
    yield Case("decoder", "torch", 128, 1)
    yield Case("decoder", "torch", 128, 2, DYNAMIC)
    yield Case("decoder", "onnx", 128, 3, INT4)
    yield Case("language_model", "folder", 128, 1, WEIGHTS)
    yield Case("language_model", "folder", 128, 2, INT4)
    yield Case("language_model", "folder", 128, 3, DYNAMIC)
    yield Case("language_model", "folder", 128, 4, INT4, memory=BLOCKS)


def _packages() -> Iterator[Case]:
    """Trained networks; fewer new samples where one takes long."""
    yield Case("mtcnn_rnet", "file", 256, 1)
    yield Case("mtcnn_rnet", "file", 256, 2, DYNAMIC)
    yield Case("mtcnn_rnet", "file", 256, 3, target=WEB)
    yield Case("mtcnn_onet", "file", 256, 1)
    yield Case("mtcnn_onet", "file", 64, 2, accuracy="fast")
    yield Case("mtcnn_onet", "file", 256, 3, target=TFLITE)
    yield Case("mtcnn_pnet", "file", 128, 1)
    yield Case("silero_vad", "file", 256, 1, batch=1)
    yield Case("silero_vad", "file", 256, 2, DYNAMIC, batch=1)
    yield Case("crepe_tiny", "torch", 128, 1)
    yield Case("crepe_tiny", "onnx", 128, 2, accuracy="fast")
    yield Case("crepe_tiny", "torch", 128, 3, WEIGHTS)
    yield Case("magika", "file", 64, 1)
    yield Case("rapidocr_cls", "file", 96, 1, new=400)
    yield Case("rapidocr_rec", "file", 32, 1, batch=8, new=100)
    yield Case("rapidocr_det", "file", 24, 1, accuracy="fast", batch=4, new=100)
    yield Case("nudenet", "file", 48, 1, accuracy="fast", batch=8, new=200)
    yield Case("nudenet", "file", 64, 2, batch=8, new=200)


CASES = tuple(
    case for group in (_tabular, _signals, _images, _texts, _packages) for case in group()
)
