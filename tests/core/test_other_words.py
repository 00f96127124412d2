"""Words of other tools are in no other way names, and mean names that exist."""

import re

import pytest
from qtool.cli import COMMANDS

from qtool.core import option_names
from qtool.core.option_names import MEANT, meant_names, unknown_name
from qtool.evaluation.gate.metrics import METRICS

KNOWN = {
    "target": option_names.TARGETS,
    "command": COMMANDS,
    "mode": option_names.MODES,
    "format": tuple(option_names.FORMATS),
    "observer": option_names.OBSERVERS,
    "recovery step": option_names.STEPS,
    "metric": tuple(METRICS),
    "accuracy level": option_names.ACCURACIES,
}


def test_words_mean_names_that_exist() -> None:
    assert MEANT.keys() == KNOWN.keys()
    for what, words in MEANT.items():
        assert {name for names in words.values() for name in names} <= set(KNOWN[what])
        for name in KNOWN[what]:
            others = [names for word, names in words.items() if re.fullmatch(word, name)]
            assert all(names == (name,) for names in others)


@pytest.mark.parametrize(
    ("word", "names"),
    {
        "raspberry-pi": ("onnxruntime", "tflite"),
        "Raspberry Pi 5": ("onnxruntime", "tflite"),
        "rpi4": ("onnxruntime", "tflite"),
        "android": ("tflite",),
        "browser": ("onnxruntime-web", "onnxruntime-webgpu"),
        "cortex-m4": ("tflite-micro",),
        "cortex_m": ("tflite-micro",),
        "esp32-s3": ("tflite-micro",),
        "coral": ("tflite",),
        "nvidia": ("tensorrt",),
        "cpu": ("onnxruntime",),
        "coreml": (),
    }.items(),
)
def test_words_of_devices(word: str, names: tuple[str, ...]) -> None:
    assert meant_names("target", word) == names


def test_the_sentence_names_all() -> None:
    known = ("onnxruntime", "tflite", "qnn")
    assert unknown_name("target", "rpi", known) == (
        "unknown target 'rpi'; did you mean 'onnxruntime' or 'tflite'? There are: onnxruntime, "
        "tflite, qnn"
    )
