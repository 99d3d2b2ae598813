"""`nearfar compare`."""

from collections.abc import Sequence

from nearfar.commands.grammar import Parser, configuration, one_data_set, whole_number
from nearfar.compare.budget import Budget
from nearfar.compare.settings import SEARCHED
from nearfar.foundation.durations import read_seconds
from nearfar.training.options import ConfigError

EXAMPLES = {
    "compare photos": "a dozen losses, heads on cached features",
    "compare photos --budget 10min": "within ten minutes",
    "compare photos --losses CircleLoss ProxyAnchorLoss": "only these",
    "compare photos --finetune --trials 4": "the whole network",
    "compare --resume comparisons/photos-1": "resume after a stop, with the same result",
    "compare photos --null CosFaceLoss": "a loss against itself, to check the statistics",
}


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        "compare [DATA] [options]",
        "Find the best loss for DATA (a folder of images, CUB, Cars, SOP, In-Shop, Market-1501, a CSV file, ...; "
        "default: the built-in glyphs). All losses get the same network, head, dimension, batches, augmentations and "
        "steps. The hyper-parameters of each are searched on held-out training classes, with trials in proportion to "
        "their number; the best setting of each is trained with several seeds; then the test classes are evaluated, "
        "once. Reported differences hold for other classes and other seeds. Writes a folder with the leaderboard, a "
        "report, the best settings as configurations, and the winner as a run.",
        EXAMPLES,
    )
    command.add_argument("data", nargs="*", metavar="DATA", help="a folder, a CSV file, ... (the built-in glyphs)")
    command.add_argument(
        "--losses",
        nargs="+",
        metavar="NAME",
        help="losses to compare; nearfar losses lists them; CircleLoss is searched over its two forms, "
        "CircleLoss/class and CircleLoss/pair over one (a dozen)",
    )
    command.add_argument(
        "--trials",
        type=whole_number,
        metavar="N",
        help="settings to try for a loss with three hyper-parameters, rates included, and for others in proportion "
        "(10); 1: the defaults",
    )
    command.add_argument("--seeds", type=whole_number, metavar="N", help="runs of each loss's best setting (5)")
    command.add_argument(
        "--folds",
        type=whole_number,
        metavar="N",
        help="folds of the training classes for evaluating settings (4, or fewer)",
    )
    command.add_argument(
        "--budget",
        metavar="TIME",
        help="total time, such as 90s, 10min or 1h30min; to fit it, nearfar reduces settings, then seeds and folds, "
        "then losses unless they were named; the same for all losses",
    )
    command.flag("--finetune", help="train the whole network, not a head on cached features")
    command.add_argument("--resume", metavar="FOLDER", help="resume a comparison that was stopped or killed")
    command.add_argument(
        "--null",
        metavar="LOSS",
        help="train the loss's default setting with the seeds of four contestants (3 each), and assign the runs "
        "randomly to four equal contestants, 200 times",
    )
    command.add_argument("--config", metavar="FILE", help="start from this YAML file")
    command.add_argument("--out", metavar="FOLDER", help="folder of the comparison (comparisons/DATA-NUMBER)")
    command.flag("--quiet", help="show only the result")
    searched = [f"optimiser.{name}" for name in SEARCHED]
    command.refuse("--lr", *(f"--{name}" for name in searched), because="is searched for every loss: leave it out")
    command.refuse("--loss", because="belongs to nearfar train: name the losses to compare with --losses")
    command.add_settings(without=("loss", "out", "budget", "data.folds", *searched))
    return command


def run(arguments: Sequence[str]) -> int:
    """Compare losses."""
    command = parser()
    options = command.parse_args(arguments)
    data = one_data_set("compare", options.data)
    if options.resume is not None and (data or command.given - {"resume", "quiet"}):
        raise ConfigError("a comparison is resumed with its own settings: --resume FOLDER takes no other options")
    # The budget includes the imports below.
    budget = None if options.budget is None else Budget(read_seconds(options.budget, "--budget"))
    from nearfar.compare.comparison import compare
    from nearfar.compare.terminal import print_leaderboard

    if options.resume is not None:
        print_leaderboard(compare(resume=options.resume, quiet=options.quiet))
        return 0
    settings = command.settings_of(options) | ({"out": options.out} if options.out is not None else {})
    if options.null is not None:
        if extra := command.given & {"trials", "folds", "budget", "losses"}:
            raise ConfigError(f"--null trains one setting of one loss: leave --{min(extra)} out")
        from nearfar.compare.null import SEEDS, null_check

        common = {"finetune": options.finetune, "quiet": options.quiet, "seeds": options.seeds or SEEDS}
        print(null_check(config=configuration(settings, data, options.config), loss=options.null, **common))
        return 0
    board = compare(
        config=configuration(settings, data, options.config),
        losses=_names(options.losses),
        trials=options.trials,
        seeds=options.seeds,
        folds=options.folds,
        budget=budget,
        finetune=options.finetune,
        quiet=options.quiet,
    )
    print_leaderboard(board)
    return 0


def _names(arguments: Sequence[str] | None) -> list[str] | None:
    """The names of losses, separated by spaces or commas."""
    names = [name for word in arguments or () for name in word.split(",") if name]
    if arguments and not names:
        raise ConfigError("--losses needs names, such as --losses CircleLoss ArcFaceLoss")
    return names or None
