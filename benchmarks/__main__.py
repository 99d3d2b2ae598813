"""The command line: `python -m benchmarks losses | tables | check`."""

import argparse
import sys
from pathlib import Path

from benchmarks import cases, regression, results
from benchmarks.implementations import IMPLEMENTATIONS
from benchmarks.measure import QUICK, THOROUGH
from benchmarks.run import describe, jobs, run, warn_if_busy
from benchmarks.settings import settings
from benchmarks.worker import Request


def parser() -> argparse.ArgumentParser:
    """All options."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)

    measure = commands.add_parser("losses", help="measure, and append rows to the results")
    measure.add_argument("--quick", action="store_true", help="two small cases, few repeats; stored only with --out")
    measure.add_argument("--scale", action="store_true", help="the sweeps and the largest cases instead")
    measure.add_argument(
        "--cases", nargs="+", metavar="CASE", type=cases.Case.parse, help="such as class-256x11318x512 pair-1024x512"
    )
    measure.add_argument("--losses", nargs="+", metavar="LOSS", choices=list(settings()))
    measure.add_argument(
        "--implementations", nargs="+", metavar="NAME", choices=IMPLEMENTATIONS, default=IMPLEMENTATIONS
    )
    measure.add_argument("--memory", type=float, default=20.0, metavar="GIB", help="of each process (20)")
    measure.add_argument("--time", type=float, default=600.0, metavar="SECONDS", help="of each process (600)")
    measure.add_argument("--threads", type=int, default=0, metavar="N", help="of torch (all cores)")
    measure.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/losses.csv")

    tables = commands.add_parser("tables", help="write tables and charts from the newest rows")
    tables.add_argument("--csv", type=Path, default=results.CSV)
    tables.add_argument("--root", type=Path, default=results.ROOT, help="where README.md and docs/ are")

    check = commands.add_parser("check", help="compare nearfar's ratios with the stored ones")
    check.add_argument("--update", action="store_true", help="store what is measured")
    return top


def losses(options: argparse.Namespace) -> int:
    """Measure everything asked for; a failure of one implementation is a row like any other."""
    if options.cases:
        wanted = [(case, options.losses) for case in options.cases]
    elif options.scale:
        wanted = [(case, [x for x in own if x in (options.losses or own)]) for case, own in cases.SCALE]
    else:
        wanted = [(case, options.losses) for case in (cases.QUICK if options.quick else cases.STANDARD)]
    out = options.out or (None if options.quick else results.CSV)
    effort = QUICK if options.quick else THOROUGH
    warn_if_busy()
    todo = jobs(wanted, options.implementations)
    for number, (case, loss, implementation) in enumerate(todo, 1):
        request = Request(case, loss, implementation, options.memory, effort, options.threads)
        row = run(request, options.time)
        if out is not None:
            results.append(row, out)
        print(f"[{number}/{len(todo)}] {case} {loss} {implementation}: {describe(row)}", file=sys.stderr, flush=True)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command; what it returns is the exit code."""
    options = parser().parse_args(arguments)
    if options.command == "losses":
        return losses(options)
    if options.command == "check":
        return regression.check(update=options.update)
    from benchmarks import tables  # matplotlib is needed here alone

    return tables.write(options.csv, options.root)


if __name__ == "__main__":
    sys.exit(main())
