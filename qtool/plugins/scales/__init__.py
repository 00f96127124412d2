"""The scales of other tools' files, in place of those of a calibration."""

from qtool.core.plugins import Plugin

_FUNCTIONS = "qtool.plugins.scales.scales_of_file"

PLUGIN = Plugin(
    functions={
        name: f"{_FUNCTIONS}:{name}"
        for name in ("calibration_of_scales", "steps_with_scales", "with_scales")
    }
)
