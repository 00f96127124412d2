"""Does a file take the sizes that the float file takes, with values that are as good?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.measured import Runner, session, sqnr

__all__ = ["other_sizes"]

LOSS = 10.0  # dB below that at the size of the samples
CEILING = 30.0  # dB: a sample that is above, as by a saturated softmax, is no rule for others
STEP = 32  # of sizes that are at least twice as large
UNNAMED = ("", "?", None)
Arrays = Mapping[str, np.ndarray]


def _free(path: Path) -> dict[str, list[tuple[str, int]]]:
    """Dynamic dimensions of the inputs: name -> [(input, axis)]; one without a name is its own."""
    groups: dict[str, list[tuple[str, int]]] = {}
    for tensor in session(path).get_inputs():
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, str) or size is None or size < 1:
                alone = size in UNNAMED or isinstance(size, int)
                name = f"{tensor.name}:{axis}" if alone else str(size)
                groups.setdefault(name, []).append((tensor.name, axis))
    firsts = [(n, a) for k, v in groups.items() for n, a in v if a == 0 and ":" in k]
    if len(firsts) > 1:  # unnamed batches vary together
        groups["batch"] = firsts
    return groups


def _resized(arrays: Arrays, places: list[tuple[str, int]], size: int) -> dict[str, np.ndarray]:
    """Repeated or cut to a size."""
    made = dict(arrays)
    for name, axis in places:
        made[name] = made[name].take(np.arange(size) % made[name].shape[axis], axis)
    return made


def _candidates(size: int) -> Iterator[int]:
    step = STEP if size >= 2 * STEP else 1
    yield from (n for n in (size + step, 2 * size, size - step) if n > 0)


def other_sizes(path: Path, plain: Runner, coded: Runner, arrays: Arrays) -> dict[str, str]:
    """What the file does at other sizes of one dynamic dimension, "NAME=SIZE" -> "ok" or what is
    wrong, for those that the float file takes.

    Args:
        path: of the float file.
        plain, coded: the float file and the file.
        arrays: one sample.
    """
    results = {}
    try:
        base = _decibels(plain(arrays), coded(arrays))
    except Exception as error:  # noqa: BLE001  # a result
        return {"batch=1": _first_line(error)}
    for name, places in _free(path).items():
        size = arrays[places[0][0]].shape[places[0][1]]
        for other in _candidates(size):
            made = _resized(arrays, places, other)
            try:
                wanted = plain(made)
            except Exception:  # noqa: BLE001, S112  # the float file does not take it
                continue
            results[f"{name}={other}"] = _judged(wanted, coded, made, base)
    return results


def _judged(wanted: Arrays, coded: Runner, arrays: Arrays, base: float) -> str:
    try:
        outputs = coded(arrays)
    except Exception as error:  # noqa: BLE001  # a result
        return f"fails: {_first_line(error)}"
    shapes = [[v.shape for v in o.values()] for o in (wanted, outputs)]
    if shapes[0] != shapes[1]:
        return f"shape {shapes[1]} for {shapes[0]}"
    decibels = _decibels(wanted, outputs)
    return (
        "ok"
        if decibels > min(base, CEILING) - LOSS
        else f"{decibels:.1f} dB, {base:.1f} of a sample"
    )


def _decibels(plain: Arrays, coded: Arrays) -> float:
    if all(v.dtype.kind != "f" for v in plain.values()):  # class numbers alone
        return 0.0
    return sqnr([(plain, coded)], whole=True)["together"]["pooled_db"]


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
