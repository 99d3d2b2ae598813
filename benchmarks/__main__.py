"""The command line: `python -m benchmarks COMMAND`; `--help` lists the commands."""

import argparse
import sys
from pathlib import Path

from benchmarks import beside, cases, evaluation, peers, regression, results
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

    in_turn = commands.add_parser("beside", help="nearfar and pytorch-metric-learning in turn, step by step")
    in_turn.add_argument("--cases", nargs="+", metavar="CASE", type=cases.Case.parse, help="(all that take seconds)")
    in_turn.add_argument("--losses", nargs="+", metavar="LOSS", choices=list(peers.PML))
    in_turn.add_argument("--time", type=float, default=60.0, metavar="SECONDS", help="that a turn may take (60)")
    in_turn.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/beside.csv")

    metrics = commands.add_parser("evaluation", help="measure retrieval metrics beside FAISS's search alone")
    metrics.add_argument("--quick", action="store_true", help="one small case, few repeats; stored only with --out")
    metrics.add_argument("--large", action="store_true", help="10,000 queries in a gallery of 1,000,000 instead")
    metrics.add_argument("--cases", nargs="+", metavar="CASE", choices=list(evaluation.BY_NAME))
    metrics.add_argument(
        "--implementations",
        nargs="+",
        metavar="NAME",
        choices=evaluation.IMPLEMENTATIONS,
        default=list(evaluation.IMPLEMENTATIONS),
    )
    metrics.add_argument("--time", type=float, default=3600.0, metavar="SECONDS", help="of each process (3600)")
    metrics.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/evaluation.csv")

    tables = commands.add_parser("tables", help="write tables and charts from the newest rows")
    tables.add_argument("--csv", type=Path, default=results.CSV)
    tables.add_argument("--root", type=Path, default=results.ROOT, help="where README.md and docs/ are")

    reranking = commands.add_parser("reranking", help="re-identification with re-ranking at Market-1501's sizes")
    reranking.add_argument("--dimension", type=int, default=512, metavar="D", help="of the embeddings (512)")
    reranking.add_argument("--scale", type=float, default=1.0, help="of the sizes (1); stored only if 1, or with --out")
    reranking.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/reranking.csv")

    extraction = commands.add_parser("extraction", help="embedding files, and training heads on cached features")
    extraction.add_argument("--images", type=Path, metavar="FOLDER", help="of photographs, instead of made ones")
    extraction.add_argument("--count", type=int, default=256, metavar="N", help="of images (256)")
    extraction.add_argument("--trunk", default="efficientnet-lite0", help="(efficientnet-lite0)")
    extraction.add_argument("--samples", type=int, default=20_000, metavar="N", help="of cached features (20000)")
    extraction.add_argument("--rounds", type=int, default=5, metavar="N", help="(5)")
    extraction.add_argument("--out", type=Path, metavar="CSV", help="append the results to it")

    loading = commands.add_parser("loading", help="photographs decoded and transformed, against plain Pillow")
    loading.add_argument("--images", type=Path, metavar="FOLDER", help="of photographs, instead of made ones")
    loading.add_argument("--count", type=int, default=256, metavar="N", help="of images (256)")
    loading.add_argument("--workers", type=int, default=2, metavar="N", help="processes that load, of both (2)")
    loading.add_argument("--rounds", type=int, default=5, metavar="N", help="(5)")
    loading.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/loading.csv")

    training = commands.add_parser("training", help="steps of nearfar train against a bare loop")
    training.add_argument("--steps", type=int, default=100, metavar="N", help="in a round (100)")
    training.add_argument("--rounds", type=int, default=5, metavar="N", help="(5)")
    training.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/training.csv")

    finetuning = commands.add_parser("finetuning", help="curves of runs on CUB's unseen classes, for docs/training.md")
    finetuning.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="whose epochs are kept first")

    search = commands.add_parser("search", help="an index against bare FAISS: building, queries, memory")
    search.add_argument("--kind", choices=("exact", "hnsw"), default="exact", help="(exact)")
    search.add_argument("--gallery", type=int, default=100_000, metavar="N", help="vectors (100000)")
    search.add_argument("--dimension", type=int, default=512, metavar="D", help="(512)")
    search.add_argument("--rounds", type=int, default=3, metavar="N", help="(3)")
    search.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/search.csv")

    identify = commands.add_parser("identify", help="who is it, or nobody: stated against measured, on new classes")
    identify.add_argument("--features", type=Path, metavar="NPZ", help="embeddings and labels of CUB-200-2011")
    identify.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/identify.csv")

    hashing = commands.add_parser("hashing", help="figures of codes beside a search of an index, for guides/hashing.md")
    hashing.add_argument("--steps", type=int, default=150, metavar="N", help="of each run on the glyphs (150)")

    commands.add_parser("parity", help="every trunk as ONNX and TorchScript against PyTorch, for docs/export.md")

    serving = commands.add_parser("serving", help="requests to nearfar serve, over loopback")
    serving.add_argument("--gallery", type=int, default=100_000, metavar="N", help="images (100,000)")
    serving.add_argument("--requests", type=int, default=100, metavar="N", help="of each kind (100)")
    serving.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/serving.csv")

    ranks = commands.add_parser("distributed", help="memory and bytes of each process against their number")
    ranks.add_argument("--classes", type=int, default=1_000_000, metavar="C", help="(1000000)")
    ranks.add_argument("--dimension", type=int, default=64, metavar="D", help="(64)")
    ranks.add_argument("--batch", type=int, default=64, metavar="B", help="of all processes together (64)")
    ranks.add_argument("--worlds", type=int, nargs="+", default=[1, 2, 4], metavar="N", help="processes (1 2 4)")
    ranks.add_argument("--losses", nargs="+", default=["ArcFaceLoss", "ProxyAnchorLoss"], metavar="LOSS")
    ranks.add_argument("--modes", nargs="+", default=["sharded", "replicated", "sampled"], metavar="MODE")
    ranks.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/distributed.csv")

    claims = commands.add_parser("claims", help="how often a comparison of equals claims a difference, simulated")
    claims.add_argument("--draws", type=int, default=2000, metavar="N", help="of each cell (2000)")

    calibration = commands.add_parser("calibration", help="thresholds stated for unseen classes against measured ones")
    calibration.add_argument("data", nargs="*", metavar="DATA", help="folders of data sets, or glyphs")
    calibration.add_argument("--features", nargs="+", type=Path, default=[], metavar="NPZ", help="of e (N, D), y (N,)")
    calibration.add_argument("--draws", type=int, default=200, metavar="N", help="of each cell (200)")
    calibration.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/calibration.csv")

    first_runs = commands.add_parser("first_runs", help="nearfar train on small folders, against the features alone")
    first_runs.add_argument("data", type=Path, metavar="DATA", help="a data set of photographs, to draw folders from")
    first_runs.add_argument("--freeze", action="store_true", help="heads on cached features")
    first_runs.add_argument("--draws", type=int, nargs=2, default=(0, 20), metavar=("FROM", "TO"), help="(0 20)")
    first_runs.add_argument("--again", action="store_true", help="also what is there already")
    first_runs.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/first_runs.csv")

    defaults = commands.add_parser("defaults", help="every loss by its defaults, for docs/losses.md")
    defaults.add_argument("data", nargs="*", metavar="DATA", help="data sets whose frozen features are trained on, too")
    defaults.add_argument("--losses", nargs="+", metavar="LOSS", help="such as 'CircleLoss, class-level' (all)")
    defaults.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N", help="(0)")
    defaults.add_argument("--without_glyphs", action="store_true", help="the data sets given alone")
    defaults.add_argument("--out", type=Path, metavar="CSV", help="instead of benchmarks/results/defaults.csv")

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


def retrieval(options: argparse.Namespace) -> int:
    """Measure retrieval metrics."""
    cases = [evaluation.LARGE] if options.large else evaluation.QUICK_CASES if options.quick else evaluation.CASES
    if options.cases:
        cases = [evaluation.BY_NAME[name] for name in options.cases]
    out = options.out or (None if options.quick else evaluation.CSV)
    warn_if_busy()
    return evaluation.run(cases, options.implementations, out, quick=options.quick, seconds=options.time)


def main(arguments: list[str] | None = None) -> int:
    """Run a command; what it returns is the exit code."""
    options = parser().parse_args(arguments)
    if options.command == "losses":
        return losses(options)
    if options.command == "beside":
        warn_if_busy()
        return beside.measure(options.cases or cases.SMALL, options.losses, options.time, options.out or beside.CSV)
    if options.command == "reranking":
        from benchmarks import reranking  # scipy is needed here alone

        warn_if_busy()
        stored = reranking.CSV if options.scale == 1 else None
        reranking.measure(options.dimension, options.scale, options.out or stored)
        return 0
    if options.command == "extraction":
        from benchmarks import extraction  # Pillow and pytorch-metric-learning are needed here alone

        warn_if_busy()
        wanted = (options.images, options.count, options.trunk, options.samples, options.rounds, options.out)
        extraction.measure(*wanted)
        return 0
    if options.command == "loading":
        from benchmarks import loading  # Pillow is needed here alone

        warn_if_busy()
        standard = options.images is None and options.count == 256 and options.workers == 2
        out = options.out or (loading.CSV if standard else None)
        loading.measure(options.images, options.count, options.workers, options.rounds, out)
        return 0
    if options.command == "training":
        from benchmarks import training  # Lightning is needed here alone

        warn_if_busy()
        standard = options.steps == 100 and options.rounds == 5
        training.measure(options.steps, options.rounds, options.out or (training.CSV if standard else None))
        return 0
    if options.command == "search":
        from benchmarks import search  # faiss is needed here alone

        warn_if_busy()
        stored = search.CSV if options.gallery == 100_000 and options.dimension == 512 else None
        search.measure(options.kind, options.gallery, options.dimension, options.rounds, options.out or stored)
        return 0
    if options.command == "identify":
        from benchmarks import identify  # the embedded data are needed here alone

        identify.measure(options.features, options.out or identify.CSV)
        if options.out is None:
            identify.write_table()
        return 0
    if options.command == "hashing":
        from benchmarks import hashing  # faiss is needed here alone

        return hashing.write(options.steps)
    if options.command == "parity":
        from benchmarks import parity  # onnx is needed here alone

        return parity.write()
    if options.command == "serving":
        from benchmarks import serving  # FastAPI is needed here alone

        warn_if_busy()
        standard = options.gallery == serving.GALLERY and options.requests == serving.REQUESTS
        serving.measure(options.gallery, options.requests, options.out or (serving.CSV if standard else None))
        return 0
    if options.command == "finetuning":
        from benchmarks import finetuning  # matplotlib and lightning are needed here alone

        return finetuning.measure(options.runs)
    if options.command == "first_runs":
        from benchmarks import first_runs  # networks and lightning are needed here alone

        out = options.out or first_runs.CSV
        return first_runs.measure(options.data, options.freeze, range(*options.draws), out, again=options.again)
    if options.command == "defaults":
        from benchmarks import defaults  # lightning is needed here alone

        data = [*([] if options.without_glyphs else [defaults.GLYPHS]), *options.data]
        return defaults.measure(data, options.losses, options.seeds, options.out or defaults.CSV)
    if options.command == "claims":
        from benchmarks import claims

        return claims.measure(options.draws)
    if options.command == "calibration":
        from benchmarks import calibration  # networks and matplotlib are needed here alone

        standard = calibration.CSV if options.draws >= calibration.DRAWS else None
        return calibration.measure(options.data, options.features, options.draws, options.out or standard)
    if options.command == "distributed":
        from benchmarks import distributed  # what trains in parts is needed here alone

        warn_if_busy()
        out = options.out or distributed.CSV
        sizes = (options.classes, options.dimension, options.batch)
        for row in distributed.measure(options.losses, options.modes, options.worlds, *sizes):
            results.append(row, out)
        if out == distributed.CSV:
            distributed.write_table(out, results.ROOT / "docs" / "scale.md")
        return 0
    if options.command == "evaluation":
        return retrieval(options)
    if options.command == "check":
        return regression.check(update=options.update)
    from benchmarks import tables  # matplotlib is needed here alone

    return tables.write(options.csv, options.root)


if __name__ == "__main__":
    sys.exit(main())
