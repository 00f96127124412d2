"""Block-wise training: steps that train on the samples of a block, once its layers are solved.

For such a step a block is a small network. It is judged on the block's held-out samples, by the
errors of its results. Then the quantized block runs again, as the next blocks have to be given its
new results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qtool.algorithms.acceptance import runtime_module
from qtool.algorithms.conversion_state import ConversionState
from qtool.algorithms.pipeline import Step, run_steps
from qtool.blockwise.activation_store import ActivationStore
from qtool.blockwise.block_pass import After, Rows, join_errors, store_results
from qtool.blockwise.block_run import BlockOutcome
from qtool.blockwise.block_samples import StoredSamples
from qtool.blockwise.stored_data import StoredBatch
from qtool.core.graph.executor import Executor
from qtool.distributed import current, share_steps


def train_block(
    state: ConversionState, steps: Sequence[Step], samples: StoredSamples
) -> ConversionState:
    """Return the state after the steps; without a change in it if none was accepted.

    Args:
        state: state of the block, with solved weights.
        steps: those with `Scope.PART`, in order.
        samples: samples of the block.
    """
    with share_steps():
        trained = run_steps(steps, replace(state, samples=samples))
    return replace(trained, samples=None)


def rerun_block(
    before: ConversionState,
    trained: ConversionState,
    values: ActivationStore,
    after: After,
    batches: Sequence[StoredBatch],
    outcome: BlockOutcome,
) -> None:
    """Run the trained block: replace the inputs of the next blocks, and the errors of `outcome`.

    Args:
        before: the state with the float weights of the block.
        trained: state after the steps.
        values: inputs of the block and of later ones.
        after: see `run_block`.
        batches: the batches to run.
        outcome: outcome of the first run.
    """
    ranks, errors = current(), dict[str, Rows]()
    module = runtime_module(trained)
    exact, coded = Executor(before.graph), Executor(replace(trained.graph, module=module))
    names = [i.name for i in before.graph.inputs]
    networks = (exact, frozenset[str]()), (coded, coded.points)
    for batch in batches[ranks.rank :: ranks.size]:
        ranks.check()
        sides = values.load(batch.number)
        results = [
            run.output_values(run.graph.call_of([side[n] for n in names]), points)
            for side, (run, points) in zip(sides, networks, strict=True)
        ]
        named = dict(zip(before.graph.outputs, zip(*results, strict=True), strict=True))
        store_results(batch, values, after, named, errors)
    outcome.errors = join_errors(ranks, errors)
