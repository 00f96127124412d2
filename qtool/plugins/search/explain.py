"""Explain a changed prediction: a smallest set of layers that restores it when kept in float.

For the sample, each quantization point is switched off alone in the quantized network, and the part
of the network after it is run: the gain of the point is how far the class scores move back. The
plan gives the points that disappear if a set of layers runs in float: the weights of the layers,
and tensors whose producer and consumers all run in float. Sets are chosen by the sum of these
gains, run, and pruned while the prediction holds. A set of one layer is minimal; no layer of a
larger set can be removed.

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

from qtool.backends.formats import open_model
from qtool.backends.session import Session
from qtool.conversion.quantized import Quantized
from qtool.core import graph as G
from qtool.core.atomic import scratch_folder
from qtool.core.data import Batch
from qtool.core.errors import DataError, PlanError
from qtool.core.graph import FloatGraph
from qtool.core.graph.executor import Executor
from qtool.core.graph.node_calls import Values
from qtool.core.progress import track
from qtool.core.types import Array
from qtool.evaluation.language_model import LanguageModel, find_language_model
from qtool.evaluation.restored_model import restore
from qtool.frontends.captured_model import Captured
from qtool.planning.plan import Kind
from qtool.planning.recipe import Rule
from qtool.plugins.search.choices import FLOAT, exact_selector, observers_of, search_space
from qtool.plugins.search.cost_model import find_items
from qtool.plugins.search.explanation import Explanation, Flip

MAX_GREEDY = 6
DEMAND_GROWTH = 1.3  # of the required gain, if the sum of the gains was too optimistic
MARGINS = (0.1, 0.5, 1.5)
"""Safety margins, in multiples of the RMS error of the scores, tried in turn because the runtime
rounds slightly differently."""
LOGITS_RANK = 3  # samples, tokens, vocabulary
MAX_SESSIONS = 16  # open sessions of files with layers in float
MAX_NEIGHBORS = 4  # groups around a tensor that are moved to float together


def _check_scores(scores: torch.Tensor) -> None:
    if scores.dim() != 2 or scores.shape[1] < 2:
        raise DataError(
            "the first output is not [samples, classes] scores, so there are no predictions to "
            "explain; `qtool report` shows which layers cost accuracy"
        )


class Explainer:
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
        plain = restore(file, captured, sample, weights=False)
        self.file, self.model, self.captured = file, model, captured
        self.sessions: dict[frozenset[int], Any] = {}
        self.executor = Executor(replace(plain.graph, module=plain.module))
        self.executor.quantized_constants = Executor(
            replace(model.graph, module=model.module)
        ).quantized_constants
        plan = model.plan
        self.items = find_items(search_space(model.graph, plan, observers_of(plan), ()))
        self._prepare()

    def _prepare(self) -> None:
        """Map points to groups; a bias belongs to the group of its weight."""
        items, space = self.items, self.items.space
        starts = np.cumsum([0, *(len(g.choices) for g in space.groups)])[:-1]
        names = [name for name, _ in items.points]
        self.points = [n for n in names if n in self.executor.points]
        rows = [names.index(n) for n in self.points]
        self.needs = items.choice_points[starts][:, rows] > 0  # [groups, points]
        self.fixed = items.fixed_points[rows] > 0
        users = {p.edges[0].user: p.name for p in self.model.plan if p.kind is Kind.BIAS}
        self.biases = {
            p.name: users[p.edges[0].user]
            for p in self.model.plan
            if p.kind is Kind.WEIGHT and p.edges and p.edges[0].user in users
        }
        singles = [frozenset({i}) for i in range(len(space.groups))]
        around = [frozenset(np.flatnonzero(self.needs[:, p]).tolist()) for p in range(len(rows))]
        self.moves = list(
            dict.fromkeys([*singles, *(a for a in around if 0 < len(a) <= MAX_NEIGHBORS)])
        )

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
        quantized = self.executor.run(self._bind(batch), self.executor.points)
        both = self._expected(batch), quantized[self.executor.outputs[0]]
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

    def _bind(self, batch: Batch) -> Batch:
        return self.model.graph.bind(batch)

    def _flip(self, index: int, batch: Batch, expected: Array, place: int) -> Flip:
        """Explain one prediction.

        Args:
            index: index of the sample in the data.
            batch: the sample.
            expected: the float model's scores, [classes].
            place: place of the token, see `_changes`.
        """
        right = int(expected.argmax())
        values = self.executor.run(self._bind(batch), self.executor.points)
        scores = _scores_at(values[self.executor.outputs[0]], place)
        wrong = int(scores.argmax())
        error = float(np.sqrt(np.square(scores.numpy() - expected).mean()))
        margin = float(expected[right] - np.delete(expected, right).max())
        search = _FlipSearch(self, values, right, place)
        start = search.margin(frozenset())
        gains = np.array(
            [search.gain(p, wrong) - float(scores[right] - scores[wrong]) for p in self.points]
        )
        chosen, is_restored = frozenset[int](), False
        for factor in MARGINS:
            search.margin_required = min(factor * error, margin / 2)
            chosen, is_restored = self._smallest(search, gains, search.margin_required - start)
            if is_restored and self._confirmed_by_runtime(chosen, batch, right, place):
                break
            search.rejected.add(chosen)
        else:
            is_restored = False
        alone = [search.margin(frozenset({g})) - start for g in sorted(chosen)]
        names = tuple(self.items.space.groups[g].name for g in sorted(chosen))
        moved = tuple(a / -start if start else 0.0 for a in alone)
        token = place if self.language_model is not None else None
        return Flip(
            index, right, wrong, margin, start, names, moved, is_restored, search.runs, token
        )

    def _confirmed_by_runtime(
        self, chosen: frozenset[int], batch: Batch, right: int, place: int
    ) -> bool:
        """Return True if the runtime predicts `right` with these groups in float."""
        if chosen not in self.sessions:  # many flips have the same cause
            if len(self.sessions) >= MAX_SESSIONS:
                del self.sessions[next(iter(self.sessions))]
            self.sessions[chosen] = self._open_session(chosen)
        model = self.sessions[chosen]
        if model is None:  # everything is in float
            return True
        scores = torch.from_numpy(model.run(self._bind(batch).arrays())[0])
        return int(_scores_at(scores, place).argmax()) == right

    def _open_session(self, chosen: frozenset[int]) -> Session | None:
        names = [self.items.space.groups[g].name for g in sorted(chosen)]
        with scratch_folder() as folder:
            try:
                file = folder / f"restored{self.file.suffix}"
                self.restored_model(names).export(file, verify=False)
            except PlanError:
                return None
            return open_model(file)

    def points_off(self, chosen: frozenset[int]) -> Array:
        """Return [points] True for those that disappear with these groups in float."""
        others = [g for g in range(len(self.needs)) if g not in chosen]
        off: Array = ~(self.needs[others].any(0) | self.fixed)
        return off

    def _smallest(
        self, search: _FlipSearch, gains: Array, need: float
    ) -> tuple[frozenset[int], bool]:
        """Return a small set that restores the prediction, and whether it does."""
        singles = [frozenset({g}) for g in range(len(self.needs))]
        for single in sorted(singles, key=lambda s: -self._promised_gain(gains, s)):
            if search.restores(single):
                return single, True
        target = need
        for _ in range(MAX_GREEDY):
            chosen = self._greedy(gains, target)
            if search.restores(chosen):
                return self._prune(search, chosen, gains), True
            target *= DEMAND_GROWTH
        everything = frozenset(range(len(self.needs)))
        return self._prune(search, everything, gains), search.restores(everything)

    def _greedy(self, gains: Array, need: float) -> frozenset[int]:
        """Add the groups with the largest gain per layer until the sum reaches `need`."""
        chosen: frozenset[int] = frozenset()
        while self._promised_gain(gains, chosen) < need and len(chosen) < len(self.needs):
            have = self._promised_gain(gains, chosen)
            rates: dict[frozenset[int], float] = {
                move: (min(self._promised_gain(gains, chosen | move), need) - have)
                / len(move - chosen)
                for move in self.moves
                if move - chosen
            }
            best = max(rates, key=lambda move: rates[move])
            chosen = chosen.union(best)
        return chosen

    def _promised_gain(self, gains: Array, chosen: frozenset[int]) -> float:
        return float(gains[self.points_off(chosen)].sum())

    def _prune(self, search: _FlipSearch, chosen: frozenset[int], gains: Array) -> frozenset[int]:
        """Remove layers that are not needed, those with the smallest gain first."""
        for group in sorted(chosen, key=lambda g: self._promised_gain(gains, frozenset({g}))):
            fewer = chosen - {group}
            if fewer and search.restores(fewer):
                chosen = fewer
        return chosen

    def restored_model(self, layers: Sequence[str]) -> Quantized:
        """Return the model of the file with these layers in float and everything else unchanged.

        Raises:
            CalibrationError: a tensor needs a range that the file does not hold.
        """
        model = self.model
        groups = {g.name: g for g in self.items.space.groups}
        names = [name for group in layers for name in groups[group].layers]
        rules = [Rule(select=exact_selector(name), scheme=FLOAT) for name in names]
        recipe = replace(model.plan.recipe, rules=(*model.plan.recipe.rules, *rules))
        return restore(self.file, self.captured, model.sample, recipe=recipe)


class _FlipSearch:
    """Runs one sample through the quantized network with points switched off."""

    def __init__(self, explainer: Explainer, values: Values, right: int, place: int) -> None:
        self.explainer, self.values = explainer, values
        self.right, self.place = right, place
        self.margin_required = 0.0
        self.rejected: set[frozenset[int]] = set()  # by the runtime
        self.runs = 0
        self.margin_cache: dict[frozenset[int], float] = {}

    def _scores(self, off: set[str]) -> torch.Tensor:
        self.runs += 1
        executor = self.explainer.executor
        off |= {bias for weight, bias in self.explainer.biases.items() if weight in off}
        output = executor.outputs[0]
        new = executor.rerun_changed(self.values, off, executor.points - off)
        return _scores_at(new[output] if output in new else self.values[output], self.place)

    def gain(self, point: str, wrong: int) -> float:
        """Return the score of the right class minus the wrong one, without a point."""
        scores = self._scores({point})
        return float(scores[self.right] - scores[wrong])

    def restores(self, chosen: frozenset[int]) -> bool:
        """Return True if the right class leads by more than the safety margin."""
        return chosen not in self.rejected and self.margin(chosen) > self.margin_required

    def margin(self, chosen: frozenset[int]) -> float:
        """Return the score of the right class minus the best other one, these groups in float."""
        if chosen not in self.margin_cache:
            points, off_mask = self.explainer.points, self.explainer.points_off(chosen)
            off = {p for p, is_off in zip(points, off_mask, strict=True) if is_off}
            scores = self._scores(off)
            others = torch.cat([scores[: self.right], scores[self.right + 1 :]])
            self.margin_cache[chosen] = float(scores[self.right] - others.max())
        return self.margin_cache[chosen]


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
