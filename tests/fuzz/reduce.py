"""A failing case made as small as it goes, while it fails in the same way."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from tests.fuzz.graph import Graph, reads
from tests.fuzz.graph import Node as GraphNode
from tests.fuzz.network import Network, Step
from tests.fuzz.oracle import Verdict, kind_of

Case = TypeVar("Case")


def reduced(
    case: Case,
    verdict: Verdict,
    check: Callable[[Case], Verdict],
    smaller: Callable[[Case], Iterator[Case]],
    most: int = 150,
) -> Case:
    """The smallest of the cases around it, and around that, that fail alike; `most` are tried."""
    tried = 0
    going = True
    while going and tried < most:
        going = False
        for other in smaller(case):
            tried += 1
            if _alike(_checked(check, other), verdict):
                case, going = other, True
                break
            if tried >= most:
                break
    return case


def _alike(a: Verdict, b: Verdict) -> bool:
    return a.kind == b.kind and kind_of(a.why)[:40] == kind_of(b.why)[:40]


def _checked(check: Callable[[Case], Verdict], case: Case) -> Verdict:
    try:
        return check(case)
    except Exception:  # noqa: BLE001  # what is smaller may be no network at all
        return Verdict("none")


def smaller_networks(case: Network) -> Iterator[Network]:
    """With less of everything, each a little."""
    for i in reversed(range(len(case.steps))):
        cut = _without(case, i)
        if cut is not None:
            yield cut
    for name in case.settings:
        yield replace(case, settings={k: v for k, v in case.settings.items() if k != name})
    if len(case.outputs) > 1:
        for i in range(len(case.outputs)):
            yield replace(case, outputs=(*case.outputs[:i], *case.outputs[i + 1 :]))
    if case.form != "tensor":
        yield replace(case, form="tensor", outputs=case.outputs[:1], keys=())
    if case.weights != "plain":
        yield replace(case, weights="plain")
    if case.size != 1.0:
        yield replace(case, size=1.0)
    for i, step in enumerate(case.steps):
        if step.name:
            steps = (*case.steps[:i], replace(step, name=""), *case.steps[i + 1 :])
            yield replace(case, steps=steps)


def _without(case: Network, gone: int) -> Network | None:
    """Without a step: what read its first result reads its first input instead. None where the
    numbers of values are not one a step, or its layer is called again."""
    before = len(case.inputs)
    if any(s.again == gone for s in case.steps) or any(
        s.op in ("split", "chunk") for s in case.steps
    ):
        return None
    value, source = before + gone, case.steps[gone].of[0]

    def moved(i: int) -> int:
        i = source if i == value else i
        return i - 1 if i > value else i

    def kept(step: Step) -> Step:
        again = step.again
        again = again - 1 if again is not None and again > gone else again
        return replace(step, of=tuple(map(moved, step.of)), again=again)

    steps = tuple(kept(s) for i, s in enumerate(case.steps) if i != gone)
    return replace(case, steps=steps, outputs=tuple(map(moved, case.outputs)))


def smaller_graphs(case: Graph) -> Iterator[Graph]:
    """With less of everything, each a little."""
    made = {o for n in case.nodes for o in n.outputs}
    if len(case.outputs) > 1:
        for i in range(len(case.outputs)):
            yield _pruned(replace(case, outputs=(*case.outputs[:i], *case.outputs[i + 1 :])))
    for node in reversed(case.nodes):
        before = [i for i in node.inputs if i in made]
        for name in before:
            yield _pruned(replace(case, outputs=(name,)))
        for source in dict.fromkeys(i for i in node.inputs if i):
            yield _pruned(_bypassed(case, node, source))
    for name in case.settings:
        yield replace(case, settings={k: v for k, v in case.settings.items() if k != name})
    for i, node in enumerate(case.nodes):
        for name in node.attributes:
            less = {k: v for k, v in node.attributes.items() if k != name}
            nodes = (*case.nodes[:i], replace(node, attributes=less), *case.nodes[i + 1 :])
            yield replace(case, nodes=nodes)


def _bypassed(case: Graph, gone: GraphNode, source: str) -> Graph:
    """Without a node: what read its first result reads one of its inputs."""

    def moved(name: str) -> str:
        return source if name == gone.outputs[0] else name

    nodes = tuple(
        replace(n, inputs=tuple(map(moved, n.inputs))) for n in case.nodes if n is not gone
    )
    return replace(case, nodes=nodes, outputs=tuple(dict.fromkeys(map(moved, case.outputs))))


def _pruned(case: Graph) -> Graph:
    """Without what no output depends on; inputs stay."""
    wanted, kept = set(case.outputs), []
    for node in reversed(case.nodes):
        if wanted & set(node.outputs):
            kept.append(node)
            wanted |= set(reads(node))
    constants = {k: v for k, v in case.constants.items() if k in wanted}
    return replace(case, nodes=tuple(kept[::-1]), constants=constants)
