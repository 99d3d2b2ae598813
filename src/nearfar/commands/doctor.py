"""`nearfar doctor`."""

from collections.abc import Sequence

from nearfar.commands.grammar import Parser, configuration, one_data_set
from nearfar.training.options import ConfigError

EXAMPLES = {
    "doctor photos": "before training",
    "doctor photos --loss TripletMarginLoss --k 2": "with the options of the training",
    "doctor --run runs/photos-circle-1": "a trained model, on a batch of its data",
}


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        "doctor [DATA] [options]",
        "Check DATA (default: the built-in glyphs) before training: read every file, check classes, split and first "
        "batch as nearfar train would with the same options, and estimate the time of training. Reports unreadable "
        "files, duplicate images, too few or too small classes, and batches that nothing can be learned from. Nothing "
        "is trained. The exit code is 1 if there are findings.",
        EXAMPLES,
    )
    command.add_argument("data", nargs="*", metavar="DATA", help="a folder, a CSV file, ... (the built-in glyphs)")
    command.add_argument("--config", metavar="FILE", help="start from this YAML file, such as config.yaml of a run")
    command.add_argument("--recipe", metavar="NAME", help="start from a paper's protocol; nearfar recipes lists them")
    command.add_argument("--run", metavar="RUN", help="check a run with its configuration and model")
    command.add_settings()
    return command


def run(arguments: Sequence[str]) -> int:
    """Print the diagnosis; return 1 if there are findings."""
    command = parser()
    options = command.parse_args(arguments)
    data = one_data_set("doctor", options.data)
    if options.run is not None and (data or command.given - {"run"}):
        raise ConfigError("--run uses the run's data and options: leave everything else out")
    from nearfar.checkup import checkup
    from nearfar.training.progress import Display
    from nearfar.training.runs import Run

    if options.run is not None:
        result = checkup.check_run(Run(options.run), Display())
    else:
        config = configuration(command.settings_of(options), data, options.config, options.recipe)
        result = checkup.check_up(config, Display())
    print(result.text())
    return 1 if result.findings else 0
