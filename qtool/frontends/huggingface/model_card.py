"""The README.md of a model's folder: what was measured, and how libraries load it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from qtool.core.summary import Summary, group_notes
from qtool.core.versions import own_version
from qtool.frontends.huggingface.consumers import loading_lines, pipeline_task
from qtool.frontends.huggingface.folder_layout import JS
from qtool.metrics.metric import Metric

CARD = "README.md"
MARK = "<!-- written by qtool -->"
"""A line of each card; a README.md without it is somebody else's and stays."""


def sections_of(card: str) -> dict[str, str]:
    """Return the section of each ONNX file in the text of a card of qtool, by the file's name."""
    if MARK not in card:
        return {}
    parts = card.split("\n## ")[1:]
    named = {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}
    return {name: text for name, text in named.items() if name.endswith(".onnx")}


def model_card(
    name: str,
    model: Any,
    files: Mapping[str, Summary],
    consumers: Sequence[str],
    earlier: Mapping[str, str] | None = None,
    pooling: str = "",
    metrics: Mapping[str, Sequence[Metric]] | None = None,
    dataset: str = "",
) -> str:
    """Return the card of a folder.

    Args:
        name: name of the model: its hub id ("org/model"), or that of its folder.
        model: as it was loaded.
        files: path of each ONNX file in the folder -> what was measured.
        consumers: libraries that load the folder.
        earlier: see `sections_of`; of files that lie in the folder from a command before.
        pooling: as for `loading_lines`.
        metrics: path of each file -> its metrics, the quantized model last.
        dataset: what they were measured on, in words.
    """
    task = pipeline_task(model)
    head = ["---", f"pipeline_tag: {task}", "tags:", "- onnx", "- quantized"]
    if "/" in name:
        head += [f"base_model: {name}", "base_model_relation: quantized"]
    head += _model_index(name, task, metrics or {}, dataset)
    lines = [*head, "---", MARK, "", f"# {name}, quantized", ""]
    lines += [f"{name} as ONNX for {task}, written and verified by qtool {own_version()}.", ""]
    lines += (earlier or {}).values()
    for file, summary in files.items():
        lines += [
            f"## {Path(file).name}",
            "",
            f"{summary.text}.",
            "",
            "| | measured |",
            "|---|---|",
        ]
        lines += [f"| {label} | {text.replace('|', '/')} |" for label, text in summary.rows]
        lines += ["", *(f"- {note}" for note in group_notes(summary.notes)), ""]
    if consumers:
        lines += ["## Use", ""]
    for consumer in consumers:
        code = loading_lines(consumer, model, next(iter(files)), pooling)
        lines += [
            f"{consumer}:",
            "",
            f"```{'js' if consumer == JS else 'python'}",
            *code,
            "```",
            "",
        ]
    return "\n".join(lines)


_METRICS = {"top-1": "accuracy"}
"""Name of a metric -> its type on the hub, where they differ."""


def _model_index(
    name: str, task: str, metrics: Mapping[str, Sequence[Metric]], dataset: str
) -> list[str]:
    """Return the line of a card's metadata that has the metrics, as JSON, which YAML includes."""
    results = [
        {
            "task": {"type": task, "name": Path(file).name},
            "dataset": {"type": "private", "name": dataset},
            "metrics": [
                {"type": _METRICS.get(m.name, m.name), "name": m.name, "value": m.values[-1]}
                for m in measured
                if isfinite(m.values[-1])
            ],
        }
        for file, measured in metrics.items()
        if measured
    ]
    index = [{"name": name, "results": results}]
    return [f"model-index: {json.dumps(index, allow_nan=False)}"] if results else []
