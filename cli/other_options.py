"""Options of other tools, which newcomers try: what qtool has for them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

_CPU = "a conversion runs on the CPU"
_TARGET = "the target decides it"
_TRAINING = "there is no training to set up; --accuracy best fits scales"
_MEANT: dict[str, str] = {
    r"--(calib|calibration|repr\w*)(-?(data|set|loader|dir|images)\w*)?|--(data-?(set|dir|path)|images|inputs?)"
    r"|--train-data|-d": "--data",
    r"--(n|num|max|calib|calibration)-?samples|--limit": "--samples",
    r"--(output|out|save|dest).*|--onnx(-out.*)?": "-o",
    r"--(checkpoint|ckpt|state-dict|load|resume)": "--weights",
    r"--(bits|[wn]-?bits|weight-bits|[wqd]?-?(type|dtype)|(weight|quant|activation).*-?d?type"
    r"|(int|q)[48]|4bit|8bit|dynamic-quant.*)": "--mode",
    r"--(calib|calibration)-?(method|algo.*)|--range.*|--percentile": "--observer",
    r"--(gptq|awq|smooth-?quant|bias-correction|adaround|cle|algo.*|method)": "--recover",
    r"--(skip|exclude|ignore|nodes-to-exclude|float-layers|keep).*": "--recipe",
    r"--(input|img|image|in)-?(shape|size|dims?)|--imgsz": (
        "the data has the shapes; --shape is for --data none"
    ),
    r"--(device|gpu|cuda|cpu-only|no-cuda)": _CPU,
    r"--(epochs?|lr|learning-rate|optimizer|loss)": _TRAINING,
    r"--(no-)?(per-(channel|tensor)|a?symmetric|reduce-range|qdq|opset.*|simplify)": _TARGET,
    r"--(no-|skip-)?(verify|check|validate)": "each file is verified before it is written",
    r"--(overwrite|force|yes)|-[fy]": "the result replaces the file that is there",
}
"""Options of other tools, as a regular expression -> the option of qtool, or why it has none."""
_SIMILAR = 0.75  # ratio of equal letters


def meant_option(name: str, known: Collection[str], arguments: Collection[str], others: str) -> str:
    """Return what to write for an option that a command does not have, or "".

    Args:
        name: the option.
        known: options of the command.
        arguments: its arguments without an option, in capitals.
        others: which commands have this option; "" if none has.
    """
    plain = name.lower().replace("_", "-")
    if plain.lstrip("-").upper() in arguments:
        return f"{plain.lstrip('-').upper()} is written without an option"
    if others:
        return others
    for pattern, meant in _MEANT.items():
        if re.fullmatch(pattern, plain):
            if not meant.startswith("-"):
                return f"leave it out: {meant}"
            return f"did you mean '{meant}'?" if meant in known else ""
    similar = difflib.get_close_matches(plain, known, 1, _SIMILAR)
    return f"did you mean '{similar[0]}'?" if similar else ""
