"""The table of processors."""

from qtool.plugins.emulators.cpus import CPUS, Family, cpuinfo, parse_cpus


def test_names_are_found_in_any_spelling() -> None:
    found = parse_cpus("Haswell, wasm,,haswell")
    assert [c.name for c in found] == ["haswell", "wasm"]
    assert parse_cpus(["nehalem"]) == (CPUS["nehalem"],)


def test_each_row_has_what_its_family_needs() -> None:
    for cpu in CPUS.values():
        assert bool(cpu.model) == (cpu.family is not Family.WEB)
        assert bool(cpu.features) == bool(cpu.part) == (cpu.family is Family.ARM)


def test_cpuinfo_says_which_products_there_are() -> None:
    """ONNX Runtime chooses its kernels on ARM by these words."""
    features = {
        name: dict(line.split("\t: ") for line in cpuinfo(CPUS[name]).splitlines() if line)[
            "Features"
        ].split()
        for name in ("cortex-a53", "neoverse-n1", "neoverse-n2")
    }
    assert [("asimddp" in f, "i8mm" in f, "sve" in f) for f in features.values()] == [
        (False, False, False),
        (True, False, False),
        (True, True, False),
    ]
