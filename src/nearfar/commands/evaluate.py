"""`nearfar evaluate`."""

import argparse
import json
import sys
from collections.abc import Sequence


def run(words: Sequence[str]) -> int:
    """Measure a run."""
    parser = argparse.ArgumentParser(prog="nearfar evaluate", description="Measure the model of a run.")
    parser.add_argument("run", metavar="RUN", help="folder that nearfar train left")
    parser.add_argument("data", nargs="?", metavar="DATA", help="other data, without what was trained on (the run's)")
    parser.add_argument("--ks", type=int, nargs="+", metavar="K", help="for recall@k (the run's)")
    parser.add_argument("--ci", action="store_true", help="add 95 %% intervals, over classes")
    parser.add_argument("--flip", action="store_true", default=None, help="average an image and its mirror image")
    parser.add_argument("--size", type=int, metavar="N", help="side of the images (the run's)")
    parser.add_argument("--device", default="cpu", help="where the network computes (cpu)")
    parser.add_argument("--json", action="store_true", help="print everything, as JSON")
    options = parser.parse_args(words)
    from nearfar.training.evaluate import evaluate
    from nearfar.training.progress import print_table

    ks = tuple(options.ks) if options.ks else None
    chosen = {name: getattr(options, name) for name in ("ci", "flip", "size", "device")}
    metrics = evaluate(options.run, options.data, ks=ks, progress=sys.stderr.isatty(), **chosen)
    if options.json:
        print(json.dumps(metrics, indent=2))
        return 0
    columns = {"": {name: value for name, value in metrics.items() if isinstance(value, float)}}
    if options.ci:
        for number, side in enumerate(("low", "high")):
            columns[side] = {name: interval[number] for name, interval in metrics["ci"].items()}
    for note in metrics["notes"]:
        print(f"note: {note}")
    how = ", codes by Hamming distance" if metrics["compared_by"] == "hamming" else ""
    print_table(f"{metrics['data']}: {metrics['images']:,} images{how}", columns)
    return 0
