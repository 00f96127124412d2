"""python -m tests.mutants [NAME...]: which mutants survive the tests that are to kill them."""

import sys

from tests.mutants.runner import outcome
from tests.mutants.table import MUTANTS


def main(names: list[str]) -> int:
    """Print the outcome of each mutant; return 1 if one is not killed.

    The tests first pass without a mutant: a test that fails anyway would kill each.
    """
    chosen = [m for m in MUTANTS if not names or m.name in names]
    if unknown := set(names) - {m.name for m in chosen}:
        print(f"there is no mutant {min(unknown)!r}")
        return 2
    if outcome(sorted({test for m in chosen for test in m.killers})) != "survived":
        print("the tests fail without a mutant, too")
        return 2
    outcomes = []
    for mutant in chosen:
        outcomes.append(outcome(mutant.killers, mutant))
        print(f"{mutant.name}: {outcomes[-1]}", flush=True)
    return int(set(outcomes) != {"killed"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
