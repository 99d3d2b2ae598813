"""`nearfar doctor`."""

from collections.abc import Sequence

from nearfar.commands.words import configuration, options_help, parse
from nearfar.training.options import ConfigError

OWN = {"config": str, "recipe": str, "run": str, "help": bool}

HELP = """usage: nearfar doctor [DATA] [options]

Reads every file of DATA (without it, the embedded glyphs), looks at its classes, its split and its first batch as
nearfar train with the same options would see them, says how long training would take, and what is to be done first:
files that cannot be read, pictures that are there twice, classes that are too few or too small, batches that nothing
can be learned from. Nothing is trained. Ends with 1 if there is something to do.

  nearfar doctor photos                                    before training
  nearfar doctor photos --loss TripletMarginLoss --k 2     with the options that you will train with
  nearfar doctor --run runs/photos-circle-1                a trained model, on a batch of its run

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
    from nearfar.checkup import checkup
    from nearfar.training.progress import Display
    from nearfar.training.runs import Run

    if "run" in taken:
        result = checkup.check_run(Run(taken["run"]), Display())
    else:
        config = configuration(taken, options, positional[0] if positional else None)
        result = checkup.check_up(config, Display())
    print(result.text())
    return 1 if result.findings else 0
