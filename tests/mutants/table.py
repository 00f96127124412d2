"""Mutants of the library: small, plausible mistakes, each with the tests that kill it.

A change of the suite that keeps them killed protects as much as before. A change that moves code
moves the text of its mutants, too.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """A replacement in one file.

    Attributes:
        name: its name on the command line.
        file: path below qtool/.
        old: text that occurs exactly once in the file.
        new: text in its place.
        killers: ids of tests, paths below tests/; at least one fails with the replacement.
    """

    name: str
    file: str
    old: str
    new: str
    killers: tuple[str, ...]

    @property
    def module(self) -> str:
        """The dotted name of the file."""
        return "qtool." + self.file.removesuffix(".py").replace("/", ".")


_ONNXRUNTIME = (
    Mutant(
        "quantize rounds halves up",
        "backends/onnxruntime/kernels/common.py",
        "codes = (x / scale).round_()",
        "codes = (x / scale).add_(0.5).floor_()",
        ("backends/onnxruntime/kernels/test_quantize.py::TestAgainstTheRuntime::test_quantize",),
    ),
    Mutant(
        "no lower clamp of codes",
        "backends/onnxruntime/kernels/common.py",
        "x.clamp_(params.qtype.qmin, params.qtype.qmax)",
        "x.clamp_(max=params.qtype.qmax)",
        ("backends/onnxruntime/kernels/test_quantize.py::TestAgainstTheRuntime::test_quantize",),
    ),
    Mutant(
        "zero point inside the rounding of a global pool",
        "backends/onnxruntime/kernels/pool.py",
        "(sums.to(torch.float32) * factor).round_().add_(zero)",
        "(sums.to(torch.float32) * factor).add_(zero).round_()",
        ("backends/onnxruntime/kernels/test_pool.py::test_global_average_pool",),
    ),
    Mutant(
        "pool window of a whole stride beyond the image",
        "backends/kernels/windows.py",
        "if 0 < missing < s:",
        "if 0 < missing <= s:",
        (
            "backends/kernels/test_windows.py::test_pads_grow_for_a_window_that_exceeds_the_image_by_less_than_its_stride",
        ),
    ),
    Mutant(
        "add without exchange of repeated operands",
        "backends/onnxruntime/kernels/elementwise.py",
        "return exchanged()(y, x) if first_repeats(x.shape, y.shape) else straight(x, y)",
        "return straight(x, y)",
        ("backends/onnxruntime/kernels/test_pool.py::test_broadcasting",),
    ),
    Mutant(
        "table of signed codes off by one",
        "backends/kernels/codes.py",
        "torch.cat([table[128:], table[:128]])",
        "torch.cat([table[127:], table[:127]])",
        ("backends/kernels/test_params.py::test_takes_the_entry_of_each_code",),
    ),
)

_TFLITE = (
    Mutant(
        "right shift rounds negative halves up",
        "backends/kernels/fixed_point.py",
        "threshold = (mask >> 1) + (x < 0).to(torch.int64)",
        "threshold = mask >> 1",
        ("backends/kernels/test_fixed_point.py::test_multiply_rounds_twice",),
    ),
    Mutant(
        "high multiply truncates",
        "backends/kernels/fixed_point.py",
        "return ((a * b + (1 << 30)) >> 31).clamp(max=INT32_MAX)",
        "return ((a * b) >> 31).clamp(max=INT32_MAX)",
        ("plugins/tflite/kernels/test_goldens.py::test_equals_the_recorded_runtime[softmax]",),
    ),
    Mutant(
        "sums of 48 bits are rounded twice",
        "backends/kernels/fixed_point.py",
        "return wrap32((x * reduced + half) >> shift)",
        "return multiply_by_quantized_multiplier(x, by)",
        ("plugins/tflite/kernels/test_goldens.py::test_equals_the_recorded_runtime[conv]",),
    ),
    Mutant(
        "average rounds down",
        "backends/kernels/fixed_point.py",
        "torch.where(x > 0, x + half, x - half)",
        "x",
        ("plugins/tflite/kernels/test_goldens.py::test_equals_the_recorded_runtime[average_pool]",),
    ),
    Mutant(
        "float becomes codes by halves to even",
        "plugins/tflite/kernels/quantize.py",
        "return torch.copysign(torch.floor(wide.abs() + 0.5), wide)",
        "return torch.round(wide)",
        ("plugins/tflite/kernels/test_goldens.py::test_equals_the_recorded_runtime[quantize]",),
    ),
    Mutant(
        "leaky relu with a factor in double",
        "plugins/tflite/kernels/activation.py",
        "None, float if in_float64 else f32)",
        "None, float)",
        ("plugins/tflite/kernels/test_goldens.py::test_equals_the_recorded_runtime[leaky_relu]",),
    ),
    Mutant(
        "add with a bit less of headroom",
        "plugins/tflite/kernels/elementwise.py",
        "_LEFT_SHIFT = {8: 20, 16: 15}",
        "_LEFT_SHIFT = {8: 19, 16: 15}",
        ("plugins/tflite/kernels/test_goldens.py::test_equals_the_recorded_runtime[add]",),
    ),
    Mutant(
        "mean shifts its multiplier too far",
        "plugins/tflite/kernels/pool.py",
        "min(n.bit_length() - 1, 32,",
        "min(n.bit_length(), 32,",
        ("plugins/tflite/kernels/test_goldens.py::test_equals_the_recorded_runtime[mean]",),
    ),
    Mutant(
        "upper bound of a fused activation beyond the type",
        "plugins/tflite/kernels/bounds.py",
        "highest = min(highest, quantize_real(high, out))",
        "highest = quantize_real(high, out)",
        ("plugins/tflite/kernels/test_goldens.py::test_equals_the_recorded_runtime[linear]",),
    ),
    Mutant(
        "average pool pads with code 0",
        "plugins/tflite/kernels/pool.py",
        "zero = int(x.zero_point) if count_include_pad else 0",
        "zero = 0",
        ("plugins/tflite/kernels/test_goldens.py::test_counted_pads_are_zeros_and_not_code_zero",),
    ),
)

_PLANNING = (
    Mutant(
        "sum of two weights beyond 16 bits",
        "planning/targets/saturation.py",
        "return _INT16_MAX // activation.qmax",
        "return _INT16_MAX // activation.qmax + 1",
        ("planning/targets/test_saturation.py::test_what_exceeds_the_limit_saturates",),
    ),
    Mutant(
        "concat shares with inputs below a fused clamp",
        "planning/sharing.py",
        "o[0] is not None and o[0] >= low",
        "o[0] is not None and o[0] <= low",
        ("planning/test_sharing.py::test_sharing[a relu keeps its own next to a clamp]",),
    ),
    Mutant(
        "clamp fused into a layer with another reader",
        "planning/planner.py",
        "source in state.integer and len(source.users) == 1 and codes_out and saturates",
        "source in state.integer and codes_out and saturates",
        ("planning/test_planner.py::test_patterns[relu, and a second reader of the conv]",),
    ),
    Mutant(
        "clamp from another number than zero is fused",
        "planning/planner.py",
        "from_zero = row.bounds(node)[0] == 0",
        "from_zero = row.bounds(node)[0] is not None",
        ("planning/test_planner.py::test_patterns[clamp that is not from zero]",),
    ),
    Mutant(
        "first rule of a fused clamp wins",
        "planning/placement.py",
        "last = max(map(state.choice, producers), key=lambda c: c.observer_rule)",
        "last = min(map(state.choice, producers), key=lambda c: c.observer_rule)",
        (
            "planning/recipe/test_recipe.py::test_an_observer_is_that_of_the_tensors_a_node_computes",
        ),
    ),
    Mutant(
        "smallest table with codes stays float",
        "planning/targets/rules.py",
        "G.value(weight).numel() < MIN_TABLE_SIZE",
        "G.value(weight).numel() <= MIN_TABLE_SIZE",
        ("planning/targets/test_targets.py::test_a_table_of_the_least_size_is_stored_as_codes",),
    ),
)

_METRICS = (
    Mutant(
        "signal only where values differ",
        "core/sqnr.py",
        "finite = signal[np.isfinite(signal)]",
        "finite = signal[np.isfinite(signal) & ~same]",
        ("core/test_sqnr.py::test_sqnr",),
    ),
    Mutant(
        "lower end of a share off by one miss",
        "metrics/intervals.py",
        "_beta_quantile(tail, hits, missed + 1)",
        "_beta_quantile(tail, hits, missed)",
        ("metrics/test_intervals.py::test_all_or_none_have_the_closed_form",),
    ),
    Mutant(
        "answer of NaN agrees",
        "metrics/output_agreement.py",
        "best: Array = np.where(np.isfinite(a).all(-1), a.argmax(-1), -1)",
        "best: Array = a.argmax(-1)",
        ("metrics/test_output_agreement.py::test_scores_with_nan_are_another_class",),
    ),
    Mutant(
        "upper end of a median one value too low",
        "metrics/intervals.py",
        "low, high = ordered[k - 1], ordered[n - k]",
        "low, high = ordered[k - 1], ordered[n - k - 1]",
        ("metrics/test_intervals.py::test_the_interval_covers_the_median_of_the_population[6]",),
    ),
    Mutant(
        "estimate is the mean of samples",
        "verification/estimate.py",
        "float(np.median(each[k]))",
        "float(np.mean(each[k]))",
        (
            "verification/test_estimate.py::test_few_samples_that_decide_the_sum_are_named_with_what_is_extreme",
        ),
    ),
    Mutant(
        "last of equal scores is the best",
        "evaluation/measure/output_reader.py",
        'order = np.argsort(-scores, axis=1, kind="stable")[:, :TOP]',
        'order = np.argsort(scores, axis=1, kind="stable")[:, ::-1][:, :TOP]',
        ("evaluation/measure/test_accuracy.py::test_first_of_equal_scores_wins",),
    ),
)

_GATE = (
    Mutant(
        "drop as large as the limit does not decide",
        "metrics/drop.py",
        "return low > limit or high <= limit",
        "return low > limit or high < limit",
        ("metrics/test_intervals.py::test_a_drop_up_to_the_limit_is_within_it",),
    ),
    Mutant(
        "variance of the jackknife without its factor",
        "metrics/drop.py",
        "variance = (count - 1) / count * float(",
        "variance = float(",
        ("metrics/test_intervals.py::test_the_jackknife_of_a_mean_has_students_interval",),
    ),
    Mutant(
        "half of the weights make another model",
        "evaluation/same_weights.py",
        "return 2 * self.other > self.layers",
        "return 2 * self.other >= self.layers",
        (
            "evaluation/test_same_weights.py::test_weights_of_few_bits_are_compared_at_their_ends_too",
        ),
    ),
    Mutant(
        "possible gain makes files incomparable",
        "evaluation/gate/metric_check.py",
        "if high < -(most := max(limit, _GAIN * usual))",
        "if low < -(most := max(limit, _GAIN * usual))",
        ("evaluation/gate/test_gate.py::test_outcomes[perhaps better than float]",),
    ),
    Mutant(
        "mildest check decides the exit code",
        "evaluation/gate/result.py",
        "return min((check.outcome for check in self.checks)",
        "return max((check.outcome for check in self.checks)",
        ("evaluation/gate/test_result.py::test_the_gravest_check_decides_the_exit_code",),
    ),
)

_OBSERVERS = (
    Mutant(
        "counts of a coarser grid one bin off",
        "observers/histogram.py",
        "((first + used) >> shift) - self.first[channel]",
        "(first >> shift) + (used >> shift) - self.first[channel]",
        ("observers/test_histogram.py::test_growth_value_by_value_is_exact",),
    ),
    Mutant(
        "percentile stops in the bin before",
        "observers/ranges.py",
        'np.searchsorted(total, elements, side="right")',
        'np.searchsorted(total, elements, side="left")',
        ("observers/test_ranges.py::test_percentile_is_numpys_to_a_bin",),
    ),
    Mutant(
        "merged averages decay by their own batches",
        "observers/moving_average.py",
        "self.momentum**other.batches",
        "self.momentum**self.batches",
        ("observers/test_moving_average.py::test_merging_is_seeing_one_after_the_other",),
    ),
    Mutant(
        "symmetric range ignores negative values",
        "observers/ranges.py",
        "torch.maximum(-lo, hi)",
        "torch.maximum(lo, hi)",
        ("observers/test_scale_and_zero_point.py::test_named_ranges",),
    ),
    Mutant(
        "hooks stay",
        "calibration/collect.py",
        "        yield statistics",
        "        hooks.pop_all()\n        yield statistics",
        ("calibration/test_calibration.py::test_no_hook_outlives_the_context",),
    ),
)

_GPTQ = (
    Mutant(
        "damping of the largest input",
        "algorithms/weight_rounding/gptq.py",
        "damping * diagonal.double().mean(-1)",
        "damping * diagonal.double().amax(-1)",
        ("algorithms/weight_rounding/test_gptq.py::test_the_factor_is_that_of_the_damped_inverse",),
    ),
    Mutant(
        "errors of a block push later columns away",
        "algorithms/weight_rounding/gptq.py",
        "free[:, end:] -= upper[:, start:end, end:].mT @ errors",
        "free[:, end:] += upper[:, start:end, end:].mT @ errors",
        ("algorithms/weight_rounding/test_gptq.py::test_blocks_of_columns_change_nothing",),
    ),
    Mutant(
        "columns of small inputs first",
        "algorithms/weight_rounding/gptq.py",
        "argsort(descending=True, stable=True)",
        "argsort(stable=True)",
        (
            "algorithms/weight_rounding/test_gptq.py::test_columns_of_large_inputs_are_first_and_keep_their_scales",
        ),
    ),
    Mutant(
        "scales of groups in the old order",
        "algorithms/weight_rounding/gptq.py",
        "(t[:, :, order].mT.contiguous() for t in (grid.scale, grid.zero_point))",
        "(t.mT.contiguous() for t in (grid.scale, grid.zero_point))",
        (
            "algorithms/weight_rounding/test_gptq.py::test_columns_of_large_inputs_are_first_and_keep_their_scales",
        ),
    ),
)

_OTHERS = (
    Mutant(
        "zero points of GPTQ are less one",
        "plugins/checkpoints/formats.py",
        "stored.long() + _STORED_LESS[form]",
        "stored.long()",
        ("plugins/checkpoints/test_checkpoints.py::test_a_scale_of_zero_keeps_weights_of_zero",),
    ),
    Mutant(
        "codes of a checkpoint may get another scale",
        "frontends/coded_linear.py",
        "if not torch.equal(own.scale, params[name].scale):",
        "if False:",
        (
            "plugins/checkpoints/test_checkpoints.py::test_a_target_that_would_widen_scales_refuses_codes",
        ),
    ),
    Mutant(
        "folded norm without epsilon",
        "passes/fold_batch_norm.py",
        "(variance.double() + eps).rsqrt()",
        "variance.double().rsqrt()",
        ("passes/test_fold_batch_norm.py::test_fold_by_hand",),
    ),
    Mutant(
        "axis of weight scales is not checked",
        "backends/onnxruntime/verification/planned_file.py",
        "scale.ndim and (along != axis or scale.shape[0] != codes.shape[axis])",
        "scale.ndim and scale.shape[0] != codes.shape[axis]",
        (
            "backends/onnxruntime/verification/test_qdq_structure.py::test_a_wrong_axis_of_a_convolution_is_found",
        ),
    ),
    Mutant(
        "new content copied over the old file",
        "core/atomic.py",
        "temporary.replace(target)",
        "shutil.copyfile(temporary, target)",
        ("core/test_atomic.py::test_a_reader_of_the_old_file_reads_it_to_its_end",),
    ),
)

MUTANTS = (*_ONNXRUNTIME, *_TFLITE, *_PLANNING, *_METRICS, *_GATE, *_OBSERVERS, *_GPTQ, *_OTHERS)
