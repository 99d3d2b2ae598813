"""`python -m benchmarks.mutation`: a command of its own, since nothing of nearfar may be imported before the trials."""

import argparse
import sys
from pathlib import Path

from benchmarks.mutation.run import CSV, SUBJECTS, measure


def main(arguments: list[str] | None = None) -> int:
    """Try a sample of mutants; 1 if any survived."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description="Do the tests notice faults?")
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"{' '.join(SUBJECTS)} (all)")
    parser.add_argument("--number", type=int, default=10, metavar="N", help="mutants of a file (10)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="TEXT", help="files with one of these in their names"
    )
    parser.add_argument("--reach", type=Path, metavar="FOLDER", help="keep here which tests reach which lines")
    parser.add_argument("--out", type=Path, default=CSV, metavar="CSV", help="(benchmarks/results/mutation.csv)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.subjects if name not in SUBJECTS]
    if unknown:
        parser.error(f"no subject {unknown[0]!r}: choose from {', '.join(SUBJECTS)}")
    names = options.subjects or list(SUBJECTS)
    return measure(names, options.number, options.seed, options.only, options.out, options.reach)


if __name__ == "__main__":
    sys.exit(main())
