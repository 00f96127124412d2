"""Compares what commands print and write with what is committed, or commits it anew.

python -m tests.reference [--update] [CASE ...]
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.reference.record import NAMES, differences, of_another_arithmetic, record, write


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.reference", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="by default all")
    parser.add_argument("--update", action="store_true", help="expect what the code writes now")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(NAMES):
        parser.error(f"no case: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    names = options.cases or NAMES
    left_out = of_another_arithmetic(names)
    if left_out:
        sys.stdout.write(f"of other kernels, not compared: {', '.join(left_out)}\n")
    with TemporaryDirectory() as folder:
        texts = record(names, Path(folder))
    texts = {name: text for name, text in texts.items() if name not in left_out}
    different = differences(texts)
    for name, lines in different.items():
        sys.stdout.write("\n".join([f"{name}:", *lines[2:], "", ""]))
    sys.stdout.write(f"{len(different)} of {len(texts)} cases differ\n")
    if options.update:
        write({name: texts[name] for name in different}, len(texts) == len(NAMES))
    sys.exit(bool(different) and not options.update)


if __name__ == "__main__":
    main()
