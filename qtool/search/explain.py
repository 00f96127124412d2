"""Why an answer changed: the smallest set of layers that brings it back when left in float.

In the quantized network each point alone is switched off, for the sample in question: the part of
the network behind it says how far the answer moves back. What leaving layers in float takes away
is known from the plan: a layer's weights, and a tensor where everybody around it is in float. Sets
of layers are chosen by the sum of what they take away, run, and made smaller as long as the answer
holds. A set of one layer is the smallest there is; of a larger one, no single layer of it can go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qtool.backends.onnxruntime.session import run, session
from qtool.conversion.quantized import Quantized
from qtool.core.atomic import scratch_folder
from qtool.core.data import Batch
from qtool.core.errors import DataError, PlanError
from qtool.core.formats import table
from qtool.core.graph.executor import Executor, Values
from qtool.core.progress import track
from qtool.core.records import to_json
from qtool.core.types import Array
from qtool.evaluation.restored_model import restore
from qtool.frontends.captured_model import Captured
from qtool.planning.plan import Kind
from qtool.planning.recipe import Rule
from qtool.search.choices import FLOAT, exact_selector, observers_of, search_space
from qtool.search.cost_model import find_items

MAX_GREEDY = 6
DEMAND_GROWTH = 1.3  # how much more is asked for where a sum promised too much
MARGINS = (0.1, 0.5, 1.5)
"""Of the error of the scores: by how much an answer is to be ahead again; more is asked for where
the runtime, which rounds a little otherwise, does not give it."""
MAX_SESSIONS = 16  # sessions of files with layers in float that are kept
MAX_NEIGHBORS = 4  # groups around a tensor, at most, for a move of its own


@dataclass(frozen=True)
class Flip:
    """One sample whose answer changed.

    expected, given: the classes of the float and of the quantized model. margin: by how much the
    expected one is ahead in float, behind: in the quantized model (negative). layers: what brings
    it back; moved: how far each of them alone moves the answer back, of the way that is needed.
    mended: whether the set does bring it back, as run. runs: of parts of the network.
    """

    index: int
    expected: int
    given: int
    margin: float
    behind: float
    layers: tuple[str, ...]
    moved: tuple[float, ...]
    mended: bool
    runs: int

    def __str__(self) -> str:
        way = ", ".join(
            f"{name} ({100 * share:.0f} % of the way alone)"
            for name, share in zip(self.layers, self.moved, strict=True)
        )
        end = "in float bring it back" if self.mended else "in float do not bring it back"
        return (
            f"sample {self.index}: {self.expected} in float (ahead by {self.margin:.4g}), "
            f"{self.given} in int8 (by {-self.behind:.4g}); {way} {end}"
        )


@dataclass(frozen=True)
class Explanation:
    """samples: how many there are. changed: answers that changed. flips: those explained."""

    samples: int
    changed: int
    flips: tuple[Flip, ...]

    @property
    def behind(self) -> tuple[tuple[str, int], ...]:
        """(layer, flips that it is behind), most first."""
        return tuple(Counter(n for f in self.flips for n in f.layers).most_common())

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = to_json(self)
        return {**found, "behind": [list(pair) for pair in self.behind]}

    def __str__(self) -> str:
        head = f"{self.changed} of {self.samples} answers changed"
        if not self.flips:
            return head
        mended = sum(f.mended for f in self.flips)
        lines = [f"{head}; {mended} of {len(self.flips)} are brought back by the layers named"]
        if len(self.flips) == 1:
            return "\n".join([head, str(self.flips[0])])
        rows = [(n, str(c), f"{100 * c / len(self.flips):.0f} %") for n, c in self.behind]
        lines += ["", table(("layer", "flips", "share"), rows), ""]
        return "\n".join([*lines, *map(str, self.flips)])


class Explainer:
    """Explains a file that qtool made, given its float model."""

    def __init__(self, file: Path, captured: Captured, sample: Batch) -> None:
        """
        Raises:
            VerificationError: the file was not made by qtool, or from another model.
        """
        model = restore(file, captured, sample)
        plain = restore(file, captured, sample, weights=False)
        self.file, self.model, self.captured = file, model, captured
        self.opened: dict[frozenset[int], Any] = {}
        self.executor = Executor(replace(plain.graph, module=plain.module))
        self.executor.quantized_constants = Executor(
            replace(model.graph, module=model.module)
        ).quantized_constants
        self.reference = Executor(captured.graph)
        plan = model.plan
        self.items = find_items(search_space(model.graph, plan, observers_of(plan), ()))
        self._prepare()

    def _prepare(self) -> None:
        """Which points stand for which groups; a bias goes with the weights beside it."""
        items, space = self.items, self.items.space
        starts = np.cumsum([0, *(len(g.choices) for g in space.groups)])[:-1]
        names = [name for name, _ in items.points]
        self.points = [n for n in names if n in self.executor.points]
        rows = [names.index(n) for n in self.points]
        self.wants = items.choice_points[starts][:, rows] > 0  # [groups, points]
        self.fixed = items.fixed_points[rows] > 0
        users = {p.edges[0].user: p.name for p in self.model.plan if p.kind is Kind.BIAS}
        self.biases = {
            p.name: users[p.edges[0].user]
            for p in self.model.plan
            if p.kind is Kind.WEIGHT and p.edges and p.edges[0].user in users
        }
        singles = [frozenset({i}) for i in range(len(space.groups))]
        around = [frozenset(np.flatnonzero(self.wants[:, p]).tolist()) for p in range(len(rows))]
        self.moves = list(
            dict.fromkeys([*singles, *(a for a in around if 0 < len(a) <= MAX_NEIGHBORS)])
        )

    def explain(
        self, data: Iterable[Batch], wanted: Sequence[int] | None, most: int
    ) -> Explanation:
        """Looks for answers that changed, and explains them.

        Args:
            data: batches as the captured graph takes them.
            wanted: numbers of samples; None: all whose answer changed.
            most: how many to explain.

        Raises:
            DataError: there is no such sample, its answer did not change, or outputs are no scores.
        """
        seen = changed = 0
        found: list[Flip] = []
        for batch in track("looking for flips", data):
            expected, given = self._answers(batch)
            flips = np.flatnonzero(expected.argmax(1) != given.argmax(1))
            changed += len(flips)
            for i in flips.tolist():
                if (wanted is None or seen + i in wanted) and len(found) < most:
                    found.append(self._flip(seen + i, _one_sample(batch, i), expected[i]))
            seen += len(expected)
        explained = {f.index for f in found}
        for index in wanted or ():
            if index >= seen:
                raise DataError(f"there is no sample {index}; the data has {seen}")
            if index not in explained and len(found) < most:
                raise DataError(f"the answer for sample {index} did not change")
        return Explanation(seen, changed, tuple(found))

    def _answers(self, batch: Batch) -> tuple[Array, Array]:
        first = self.reference.outputs[0] if self.reference.outputs else None
        if first is None:
            raise DataError("the model has no float output to explain")
        real = self.reference.run(batch, frozenset())[first]
        coded = self.executor.run(self._bind(batch), self.executor.points)
        both = real, coded[self.executor.outputs[0]]
        if any(t.dim() != 2 or t.shape[1] < 2 for t in both):
            raise DataError("the first output is no list of scores, so that no answer can change")
        expected, given = (t.numpy() for t in both)
        return expected, given

    def _bind(self, batch: Batch) -> Batch:
        return self.model.graph.bind(batch)

    def _flip(self, index: int, batch: Batch, expected: Array) -> Flip:
        right = int(expected.argmax())
        values = self.executor.run(self._bind(batch), self.executor.points)
        scores = values[self.executor.outputs[0]][0]
        wrong = int(scores.argmax())
        off = float(np.sqrt(np.square(scores.numpy() - expected).mean()))
        ahead = float(expected[right] - np.delete(expected, right).max())
        search = _FlipSearch(self, values, right, 0.0)
        start = search.margin(frozenset())
        gains = np.array(
            [search.gain(p, wrong) - float(scores[right] - scores[wrong]) for p in self.points]
        )
        chosen, mended = frozenset[int](), False
        for safe in MARGINS:
            search.least = min(safe * off, ahead / 2)
            chosen, mended = self._smallest(search, gains, search.least - start)
            if mended and self._confirmed_by_runtime(chosen, batch, right):
                break
        else:
            mended = False
        alone = [search.margin(frozenset({g})) - start for g in sorted(chosen)]
        names = tuple(self.items.space.groups[g].name for g in sorted(chosen))
        moved = tuple(a / -start if start else 0.0 for a in alone)
        return Flip(index, right, wrong, ahead, start, names, moved, mended, search.runs)

    def _confirmed_by_runtime(self, chosen: frozenset[int], batch: Batch, right: int) -> bool:
        """Whether a file with these groups in float gives the answer in the runtime."""
        if chosen not in self.opened:  # many answers are brought back by the same layers
            if len(self.opened) >= MAX_SESSIONS:
                del self.opened[next(iter(self.opened))]
            self.opened[chosen] = self._open_session(chosen)
        model = self.opened[chosen]
        if model is None:  # nothing is left in integers
            return True
        return int(run(model, self._bind(batch).arrays())[0][0].argmax()) == right

    def _open_session(self, chosen: frozenset[int]) -> Any:
        names = [self.items.space.groups[g].name for g in sorted(chosen)]
        with scratch_folder() as folder:
            try:
                self.restored_model(names).export(folder / "mended.onnx", verify=False)
            except PlanError:
                return None
            return session(folder / "mended.onnx")

    def points_off(self, chosen: frozenset[int]) -> Array:
        """[points] those that are gone when these groups are in float."""
        kept = [g for g in range(len(self.wants)) if g not in chosen]
        gone: Array = ~(self.wants[kept].any(0) | self.fixed)
        return gone

    def _smallest(
        self, search: _FlipSearch, gains: Array, need: float
    ) -> tuple[frozenset[int], bool]:
        """A set that mends, as small as is found, and whether it does."""
        singles = [frozenset({g}) for g in range(len(self.wants))]
        for single in sorted(singles, key=lambda s: -self._promised_gain(gains, s)):
            if search.restores(single):
                return single, True
        asked = need
        for _ in range(MAX_GREEDY):
            chosen = self._greedy(gains, asked)
            if search.restores(chosen):
                return self._prune(search, chosen, gains), True
            asked *= DEMAND_GROWTH
        everything = frozenset(range(len(self.wants)))
        return self._prune(search, everything, gains), search.restores(everything)

    def _greedy(self, gains: Array, need: float) -> frozenset[int]:
        """Moves that promise most for each layer, until the sum is enough."""
        chosen: frozenset[int] = frozenset()
        while self._promised_gain(gains, chosen) < need and len(chosen) < len(self.wants):
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
        """Without the layers that it mends without, those that promise least first."""
        for group in sorted(chosen, key=lambda g: self._promised_gain(gains, frozenset({g}))):
            fewer = chosen - {group}
            if fewer and search.restores(fewer):
                chosen = fewer
        return chosen

    def restored_model(self, layers: Sequence[str]) -> Quantized:
        """The model of the file with these layers in float and all else as it is there.

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
    """Runs of one sample, in the quantized network with points switched off."""

    def __init__(self, explainer: Explainer, values: Values, right: int, least: float) -> None:
        self.of, self.values, self.right, self.least = explainer, values, right, least
        self.runs = 0
        self.known: dict[frozenset[int], float] = {}

    def _scores(self, off: set[str]) -> torch.Tensor:
        self.runs += 1
        executor = self.of.executor
        off |= {bias for weight, bias in self.of.biases.items() if weight in off}
        output = executor.outputs[0]
        new = executor.rerun_changed(self.values, off, executor.points - off)
        found: torch.Tensor = (new[output] if output in new else self.values[output])[0]
        return found

    def gain(self, point: str, wrong: int) -> float:
        """How far the right class is ahead of the wrong one without a point."""
        scores = self._scores({point})
        return float(scores[self.right] - scores[wrong])

    def restores(self, chosen: frozenset[int]) -> bool:
        """Whether the right class is ahead again, by more than what a runtime rounds otherwise."""
        return self.margin(chosen) > self.least

    def margin(self, chosen: frozenset[int]) -> float:
        """How far the right class is ahead of all others with these groups in float."""
        if chosen not in self.known:
            off = {p for p, o in zip(self.of.points, self.of.points_off(chosen), strict=True) if o}
            scores = self._scores(off)
            others = torch.cat([scores[: self.right], scores[self.right + 1 :]])
            self.known[chosen] = float(scores[self.right] - others.max())
        return self.known[chosen]


def _one_sample(batch: Batch, index: int) -> Batch:
    def cut(x: Any) -> Any:
        return x[index : index + 1] if isinstance(x, torch.Tensor) and x.dim() else x

    return Batch(tuple(map(cut, batch.args)), {k: cut(v) for k, v in batch.kwargs.items()})
