"""Results in a few lines: aligned rows, grouped notes."""

from __future__ import annotations

import re

from qtool.core.summary import Printed, Summary, group_notes
from qtool.evaluation.measure.model_contents import ModelContents
from qtool.planning.plan import QuantPlan
from qtool.verification.coverage import Coverage


def test_rows_are_aligned_and_notes_counted() -> None:
    notes = tuple(f"sentence {word}" for word in ("one", "two", "three", "four", "five"))
    text = str(Summary("a.onnx", "int8", (("size", "1 KiB"), ("integer", "100 %")), notes))
    assert text.splitlines() == [
        "a.onnx  int8",
        "  size     1 KiB",
        "  integer  100 %",
        "  note  sentence one",
        "  note  sentence two",
        "  note  sentence three",
        "  note  and 2 more notes",
    ]


def test_a_notebook_shows_a_table() -> None:
    rows = (("size", "1 KiB"), ("in <b>", "1 & 2"))
    page = Summary("a.onnx", "int8", rows, ("note <i>",), ("warning: <x>",)).to_html()
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", page)
    assert cells == ["size", "1 KiB", "in &lt;b&gt;", "1 &amp; 2", "note", "note &lt;i&gt;"]
    assert page.endswith("</table><p>warning: &lt;x&gt;</p>")


def test_notes_on_one_fact_are_one_note() -> None:
    zero = [
        f"layer{i}.bn: weights are zero in {n} of 64 channels" for i, n in enumerate((8, 64, 9))
    ]
    other = ["calibration has not settled; use more samples", "gptq: skipped after a failure"]
    assert group_notes([*zero[:1], *other, *zero[1:]]) == [
        "layer0.bn, layer1.bn, layer2.bn: weights are zero in 8 to 64 of 64 channels",
        *other,
    ]
    many = [f"l{i}: too small for a scale of 2^-60" for i in range(8)]
    assert group_notes(many) == ["l0, l1, l2 and 5 more: too small for a scale of 2^-60"]


def test_tables_are_shown_in_a_notebook_as_they_print() -> None:
    class Table(Printed):
        def __str__(self) -> str:
            return "a  b < c"

    assert Table()._repr_html_() == "<pre>a  b &lt; c</pre>"
    assert all(issubclass(kind, Printed) for kind in (QuantPlan, Coverage, ModelContents))
