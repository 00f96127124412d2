"""Explain a changed prediction: a small set of layers that restores it when kept in float.

The tensors of the file are ranked as in a search: for the sample, each is given back its float
values alone, and the part of the network after it is run again. The layers around the tensors
that move the scores back most leave their codes, one tensor after the other, until the prediction
is restored; then layers that are not needed return. The runtime confirms the set.

The predictions of a language model are the next tokens after each token of a text. Of a text with
several changed ones the one is explained that the float model is most certain of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from qtool.algorithms.error_sources import error_sources, exact_selector
from qtool.backends.formats import open_file, open_model
from qtool.backends.session import Session
from qtool.conversion.quantized import Quantized
from qtool.conversion.trained_weights import unrounded_executor
from qtool.core import graph as G
from qtool.core.atomic import scratch_folder
from qtool.core.conversion_options import DynamicSizes
from qtool.core.data import Batch, batches, peek
from qtool.core.errors import DataError, PlanError
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.graph.node_calls import Values
from qtool.core.path_arguments import model_file
from qtool.core.progress import track
from qtool.core.remedies import DataEdit
from qtool.core.types import Array
from qtool.evaluation.fixed_inputs import check_fixed_inputs
from qtool.evaluation.language_model import LanguageModel, find_language_model
from qtool.evaluation.restored_model import restore
from qtool.evaluation.same_model import check_same_model
from qtool.frontends.captured_model import Captured, Model, capture_model
from qtool.planning.plan import Kind
from qtool.planning.recipe import Rule
from qtool.plugins.search.choices import FLOAT
from qtool.plugins.search.explanation import Explanation, Flip
from qtool.plugins.search.ranking import FORMS

LOGITS_RANK = 3  # samples, tokens, vocabulary
MAX_SESSIONS = 16  # open sessions of files with layers in float

Nodes = frozenset[str]
"""Names of nodes that compute in float."""


def explain(
    file: str | Path,
    model: Model | Captured,
    data: Iterable[Any],
    *,
    samples: Sequence[int] | None = None,
    most: int = 100,
    repaired_file: str | Path | None = None,
    dynamic: DynamicSizes | None = None,
    other_model: bool = False,
) -> Explanation:
    """Find the layers of an int8 file that cause changed predictions.

    Args:
        file: an int8 file that qtool wrote.
        model: its float model, as for `quantize`.
        data: batches; the first output of the model has to be [samples, classes] scores, or those
            of the next tokens of a language model.
        samples: numbers of samples, from 0; None: all with a changed prediction.
        most: maximum number of samples to explain.
        repaired_file: where to write a copy that keeps those layers in float, which restores the
            predictions of all explained samples.
        dynamic: see `capture_model`.
        other_model: accept a float model with other weights than the file was made from.

    Raises:
        DataError: no data, no scores, no such sample, or its prediction did not change.
        CalibrationError: the file lacks the range of a tensor that the repaired file quantizes.
        VerificationError: the file was not written by qtool, or is of another model.

    Example:
        >>> print(qtool.explain("model.int8.onnx", model, loader))
    """
    file = model_file(file)
    open_file(file)
    check_fixed_inputs(file, model)
    first, data = peek(data, model if isinstance(model, nn.Module) else None)
    if first is None:
        raise DataError("the data is empty", DataEdit("give at least one batch"))
    captured = capture_model(model, first, dynamic)
    if not other_model:
        check_same_model(file, captured, model)
    explainer = _Explainer(file, captured, first)
    stream = enumerate(batches(data, captured.graph.module))
    bound = (captured.graph.bind(b, i) for i, b in stream)
    explanation = explainer.explain(bound, samples, most)
    if hasattr(data, "sample_names"):
        explanation = explanation.named(data.sample_names())
    if repaired_file is not None:
        layers = dict.fromkeys(name for flip in explanation.flips for name in flip.layers)
        explainer.restored_model(tuple(layers)).export(repaired_file)
    return explanation


class _Explainer:
    """Explains changed predictions of a file that qtool made, with its float model."""

    def __init__(self, file: Path, captured: Captured, sample: Batch) -> None:
        """
        Raises:
            DataError: the first output is neither [samples, classes] scores nor those of next
                tokens.
            VerificationError: the file was not made by qtool, or from another model.
        """
        self.reference = Executor(captured.graph)
        self.language_model = _language_model(captured, sample)
        if self.language_model is None:
            _check_scores(self._expected(captured.graph.bind(sample)))
        model = restore(file, captured, sample)
        self.file, self.model, self.captured = file, model, captured
        self.sessions: dict[Nodes, Session | None] = {}
        self.run = unrounded_executor(model)
        plan, names = model.plan, {G.name_of(n) for n in G.calls(model.graph.graph)}
        weights = {p.edges[0].user: p.name for p in plan if p.kind is Kind.WEIGHT and p.edges}
        biases = {
            weights[p.edges[0].user]: p.name
            for p in plan
            if p.kind is Kind.BIAS and p.edges and p.edges[0].user in weights
        }  # a bias goes with its weight
        self.sources = [
            replace(s, points=s.points | {biases[p] for p in s.points if p in biases})
            for s in error_sources(plan, self.run.points, names, FORMS)
        ]

    def explain(
        self, data: Iterable[Batch], wanted: Sequence[int] | None, most: int
    ) -> Explanation:
        """Find changed predictions and explain them.

        Args:
            data: batches as the captured graph takes them.
            wanted: indices of samples; None: all whose prediction changed.
            most: maximum number of samples to explain.

        Raises:
            DataError: no such sample, its prediction did not change, or the model gives neither
                [samples, classes] scores nor scores of next tokens.
        """
        samples = changed = tokens = changed_tokens = 0
        flips: list[Flip] = []
        for batch in track("finding changed predictions", data):
            expected, differing, count = self._changes(batch)
            tokens, changed_tokens = tokens + count, changed_tokens + int(differing.sum())
            changed += int(differing.any(1).sum())
            for i in np.flatnonzero(differing.any(1)).tolist():
                if (wanted is None or samples + i in wanted) and len(flips) < most:
                    place = _most_certain(expected[i], differing[i])
                    one = _one_sample(self.model.graph, batch, i)
                    flips.append(self._flip(samples + i, one, expected[i, place], place))
            samples += len(expected)
        explained = {f.index for f in flips}
        for index in wanted or ():
            if index >= samples:
                raise DataError(f"there is no sample {index}; the data has {samples}")
            if index not in explained and len(flips) < most:
                raise DataError(f"the prediction for sample {index} did not change")
        if self.language_model is None:
            return Explanation(samples, changed, tuple(flips))
        return Explanation(samples, changed, tuple(flips), tokens, changed_tokens)

    def _changes(self, batch: Batch) -> tuple[Array, Array, int]:
        """Return the float model's scores, and which predictions the quantized model changed.

        Returns:
            float [samples, places, classes]; bool [samples, places], and how many are no padding.
            The places are the tokens of a language model, and a single one otherwise.
        """
        quantized = self.run.run(self.bind(batch), self.run.points)
        both = self._expected(batch), quantized[self.run.outputs[0]]
        if both[0].shape != both[1].shape:
            raise DataError(
                "values decide how many rows the first output has, so that no row has a "
                "prediction that changed"
            )
        if self.language_model is None:
            for scores in both:
                _check_scores(scores)
        expected, actual = (t.reshape(len(t), -1, t.shape[-1]).numpy() for t in both)
        differing = expected.argmax(2) != actual.argmax(2)
        kept = np.ones_like(differing)
        if self.language_model is not None:
            arrays = [t.numpy() for t in self.captured.graph.tensors_of(batch)]
            kept = self.language_model.token_mask(arrays)
        return expected, differing & kept, int(kept.sum())

    def _expected(self, batch: Batch) -> torch.Tensor:
        """Return the scores of the float model."""
        if not self.reference.outputs:
            raise DataError("the model has no float output to explain")
        scores: torch.Tensor = self.reference.run(batch, frozenset())[self.reference.outputs[0]]
        return scores

    def bind(self, batch: Batch) -> Batch:
        return self.model.graph.bind(batch)

    def _flip(self, index: int, batch: Batch, expected: Array, place: int) -> Flip:
        """Explain one prediction.

        Args:
            index: index of the sample in the data.
            batch: the sample.
            expected: the float model's scores, [classes].
            place: place of the token, see `_changes`.
        """
        sample = _Sample(self, batch, int(expected.argmax()), place)
        chosen, is_restored = self._restoring(sample)
        margin = float(expected[sample.right] - np.delete(expected, sample.right).max())
        return Flip(
            index=index,
            expected=sample.right,
            predicted=sample.wrong,
            margins=(margin, sample.margin(frozenset())),
            layers=tuple(sorted(chosen)),
            fixed=is_restored,
            token=place if self.language_model is not None else None,
        )

    def _restoring(self, sample: _Sample) -> tuple[Nodes, bool]:
        """Return few nodes in float that restore a prediction, and whether the runtime agrees."""
        alone = {nodes: sample.margin(nodes) for nodes in {s.nodes for s in self.sources}}
        order = sorted(alone, key=lambda nodes: (-alone[nodes], len(nodes), sorted(nodes)))
        chosen: Nodes = frozenset()
        for nodes in order:
            whole = chosen | nodes
            if whole == chosen:
                continue
            chosen = whole
            if sample.margin(chosen) <= 0:
                continue
            fewer = self._pruned(sample, chosen, order)
            if self._confirmed(fewer, sample):
                return fewer, True
            if fewer != chosen and self._confirmed(chosen, sample):
                return chosen, True
        return chosen, False

    def _pruned(self, sample: _Sample, chosen: Nodes, order: Sequence[Nodes]) -> Nodes:
        """Return nodes without those that are not needed, those of the smallest gain first."""
        for nodes in reversed([n for n in order if n <= chosen]):
            fewer = chosen - nodes
            if fewer and sample.margin(fewer) > 0:
                chosen = fewer
        return chosen

    def points_off(self, chosen: Nodes) -> set[str]:
        """Return the points that are gone with these nodes in float."""
        return {p for s in self.sources if s.nodes <= chosen for p in s.points}

    def _confirmed(self, chosen: Nodes, sample: _Sample) -> bool:
        """Return True if the runtime restores a prediction with these nodes in float."""
        if chosen not in self.sessions:  # many flips have the same cause
            if len(self.sessions) >= MAX_SESSIONS:
                del self.sessions[next(iter(self.sessions))]
            self.sessions[chosen] = self._open_session(chosen)
        model = self.sessions[chosen]
        if model is None:  # everything is in float
            return True
        scores = torch.from_numpy(model.run(self.bind(sample.batch).arrays())[0])
        return int(_scores_at(scores, sample.place).argmax()) == sample.right

    def _open_session(self, chosen: Nodes) -> Session | None:
        with scratch_folder() as folder:
            try:
                file = folder / f"restored{self.file.suffix}"
                self.restored_model(chosen).export(file, verify=False)
            except PlanError:
                return None
            return open_model(file)

    def restored_model(self, nodes: Iterable[str]) -> Quantized:
        """Return the model of the file with these nodes in float and everything else unchanged.

        Raises:
            CalibrationError: a tensor needs a range that the file does not hold.
        """
        model = self.model
        rules = [Rule(select=exact_selector(name), scheme=FLOAT) for name in sorted(nodes)]
        recipe = replace(model.plan.recipe, rules=(*model.plan.recipe.rules, *rules))
        return restore(self.file, self.captured, model.sample, recipe=recipe)


class _Sample:
    """Runs one sample through the quantized network with nodes in float."""

    def __init__(self, explainer: _Explainer, batch: Batch, right: int, place: int) -> None:
        self.explainer, self.batch = explainer, batch
        self.right, self.place = right, place
        run = explainer.run
        self.values: Values = run.run(explainer.bind(batch), run.points)
        self.wrong = int(_scores_at(self.values[run.outputs[0]], place).argmax())
        self._margins: dict[Nodes, float] = {}

    def margin(self, chosen: Nodes) -> float:
        """Return the score of the right class minus the best other one, these nodes in float."""
        if chosen not in self._margins:
            run, off = self.explainer.run, self.explainer.points_off(chosen)
            new = run.rerun_changed(self.values, off, run.points - off)
            output = run.outputs[0]
            scores = _scores_at(new[output] if output in new else self.values[output], self.place)
            others = torch.cat([scores[: self.right], scores[self.right + 1 :]])
            self._margins[chosen] = float(scores[self.right] - others.max())
        return self._margins[chosen]


def _check_scores(scores: torch.Tensor) -> None:
    if scores.dim() != 2 or scores.shape[1] < 2:
        raise DataError(
            "the first output is not [samples, classes] scores, so there are no predictions to "
            "explain; `qtool report` shows which layers cost accuracy"
        )


def _language_model(captured: Captured, sample: Batch) -> LanguageModel | None:
    """Return the places of tokens and scores if the first output has next tokens, else None."""
    graph = captured.graph
    outputs = G.output_nodes(graph.graph)
    if not outputs or not G.is_tensor(outputs[0]) or G.rank(outputs[0]) != LOGITS_RANK:
        return None
    arrays = [t.detach().cpu().numpy() for t in graph.tensors_of(graph.bind(sample))]
    with scratch_folder() as folder:
        model = open_model(captured.export_float(folder / "float.onnx"))
        place = find_language_model(model, arrays)
    return place if place is not None and place.logits == 0 else None


def _most_certain(expected: Array, differing: Array) -> int:
    """Return the changed place whose prediction the float model is most certain of.

    Args:
        expected: scores, [places, classes].
        differing: [places].
    """
    best = np.partition(expected, -2, axis=1)[:, -2:]
    return int(np.where(differing, best[:, 1] - best[:, 0], -np.inf).argmax())


def _scores_at(output: torch.Tensor, place: int) -> torch.Tensor:
    """Return the scores [classes] of the first sample at a place, see `Explainer._changes`."""
    return output[0].reshape(-1, output.shape[-1])[place]


def _one_sample(graph: FloatGraph, batch: Batch, index: int) -> Batch:
    """Return one sample of a batch; as every sample of it where the graph takes no other sizes."""
    alone, size = graph.batches_are_samples, batch.size

    def cut(t: torch.Tensor) -> torch.Tensor:
        if not t.dim() or (not alone and len(t) != size):
            return t
        sample = t[index : index + 1]
        return sample if alone else sample.expand_as(t)

    return batch.map_tensors(cut)
