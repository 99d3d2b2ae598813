"""`nearfar doctor`."""

from collections.abc import Sequence

from nearfar.commands.grammar import Parser, configuration, one_data_set
from nearfar.training.options import ConfigError

EXAMPLES = {
    "doctor photos": "before training",
    "doctor photos --loss TripletMarginLoss --k 2": "with the options that you will train with",
    "doctor --run runs/photos-circle-1": "a trained model, on a batch of its run",
}


def parser() -> Parser:
    """Its words."""
    words = Parser(
        "doctor [DATA] [options]",
        "Read every file of DATA (without it, the embedded glyphs), look at its classes, its split and its first "
        "batch as nearfar train with the same options would see them, and say how long training would take and "
        "what is to be done first: files that cannot be read, pictures that are there twice, classes that are too "
        "few or too small, batches that nothing can be learned from. Nothing is trained. The exit code is 1 if "
        "there is something to do.",
        EXAMPLES,
    )
    words.add_argument("data", nargs="*", metavar="DATA", help="a folder, a CSV file, ... (the embedded glyphs)")
    words.add_argument("--config", metavar="FILE", help="begin with this YAML file, such as config.yaml of a run")
    words.add_argument("--recipe", metavar="NAME", help="begin with a paper's protocol; nearfar recipes lists them")
    words.add_argument("--run", metavar="RUN", help="the configuration and the model of a run")
    words.add_settings()
    return words


def run(words: Sequence[str]) -> int:
    """Print the diagnosis; 1 if something is wrong."""
    form = parser()
    options = form.parse_args(words)
    data = one_data_set("doctor", options.data)
    if options.run is not None and (data or form.given - {"run"}):
        raise ConfigError("--run has its data and options: give nothing else")
    from nearfar.checkup import checkup
    from nearfar.training.progress import Display
    from nearfar.training.runs import Run

    if options.run is not None:
        result = checkup.check_run(Run(options.run), Display())
    else:
        config = configuration(form.settings_of(options), data, options.config, options.recipe)
        result = checkup.check_up(config, Display())
    print(result.text())
    return 1 if result.findings else 0
