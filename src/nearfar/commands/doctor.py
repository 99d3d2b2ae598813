"""`nearfar doctor`."""

from collections.abc import Sequence

from nearfar.commands.words import configuration, options_help, parse
from nearfar.training.options import ConfigError

OWN = {"config": str, "recipe": str, "run": str, "help": bool}

HELP = """usage: nearfar doctor [DATA] [options]

Looks at DATA (without it, the embedded glyphs) and at its first batch, as nearfar train with the same options would see
them: counts, splits, the batch's pairs, the share of pairs that the loss learns from, how the embeddings lie, and what
is wrong. Nothing is trained.

  nearfar doctor photos --loss TripletMarginLoss --k 2     before training
  nearfar doctor --run runs/photos-circle-1                a trained model, on the data of its run

  --config FILE, --recipe NAME    as in nearfar train
  --run RUN                       the configuration and the model of a run"""


def run(words: Sequence[str]) -> int:
    """Print the diagnosis; 1 if something is wrong."""
    if {"-h", "--help"} & set(words):
        print(f"{HELP}\n{options_help()}")
        return 0
    positional, taken, options = parse(words, OWN)
    if len(positional) > 1:
        raise ConfigError(f"doctor takes one data set, not {len(positional)}: {' '.join(positional)}")
    if "run" in taken and (options or positional or len(taken) > 1):
        raise ConfigError("--run has its data and options: give nothing else")
    from nearfar.training.checkup import check_up
    from nearfar.training.progress import Display
    from nearfar.training.runs import Run

    past = Run(taken["run"]) if "run" in taken else None
    config = past.config if past is not None else configuration(taken, options, positional[0] if positional else None)
    summary, report = check_up(config, past, Display())
    warnings = report.warnings()
    print(summary)
    print(report.table())
    for warning in warnings:
        print(f"! {warning}")
    if not warnings:
        print("nothing is wrong with this batch")
    return 1 if warnings else 0
