#!/usr/bin/env bash
# Every example from the command line, one mode of precision each; the first that fails ends it.
#
#   bash examples/run.sh FOLDER       from the root of the repository; the files go to FOLDER
set -euo pipefail
out=${1:?a folder for the files}
rm -rf "$out"
mkdir -p "$out/lm"

network=(examples.digits.network:digits_net --weights examples/digits/weights.safetensors)
test_data=(--data examples/digits/eval.npz --labels labels)

# Print the command, run it, and print the last line of what it says.
run() {
	echo "+ qtool $*" | cut -c 1-150
	qtool "$@" >"$out/last.txt" || {
		cat "$out/last.txt"
		return 1
	}
	tail -n 1 "$out/last.txt"
}

run calibrate "${network[@]}" --data calib_data/digits -o "$out/digits.calib"
run convert "${network[@]}" --calibration "$out/digits.calib" -o "$out/digits.onnx" --timing 0
run evaluate "$out/digits.onnx" --model "${network[@]}" "${test_data[@]}" --seconds 0.1
run report "$out/digits.onnx" --model "${network[@]}" "${test_data[@]}" -o "$out/report" --seconds 0.1
run verify "$out/digits.onnx"
run inspect "$out/digits.onnx"
for mode in dynamic weight-only weight-only-int4; do
	run quantize "${network[@]}" --data calib_data/digits --mode "$mode" -o "$out/$mode.onnx" --timing 0
done
run quantize examples/sentence_encoder/model --data examples/sentence_encoder/calibration.txt \
	-o "$out/encoder.onnx" --timing 0
run quantize examples/language_model/model --task text-generation-with-past \
	--data examples/language_model/calibration.txt --mode weight-only-int4 -o "$out/lm/model.onnx" --timing 0
echo "all examples ran; their files are in $out"
