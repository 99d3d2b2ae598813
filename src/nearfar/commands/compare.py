"""`nearfar compare`."""

from collections.abc import Sequence

from nearfar.commands.grammar import Parser, configuration, one_data_set, whole_number
from nearfar.compare.budget import Budget
from nearfar.compare.settings import SEARCHED
from nearfar.foundation.durations import read_seconds
from nearfar.training.options import ConfigError

EXAMPLES = {
    "compare photos": "a dozen losses, heads on cached features",
    "compare photos --budget 10min": "as much as fits into ten minutes",
    "compare photos --losses CircleLoss ProxyAnchorLoss": "only these",
    "compare photos --finetune --trials 4": "the whole network",
    "compare --resume comparisons/photos-1": "continue after a stop, to the very same end",
    "compare photos --null CosFaceLoss": "a loss against itself: are equals told apart?",
}


def parser() -> Parser:
    """Its words."""
    words = Parser(
        "compare [DATA] [options]",
        "Which loss is best on DATA (a folder of images, CUB, Cars, SOP, In-Shop, Market-1501, a CSV file, ...; "
        "without it, the embedded glyphs)? All losses get the same network, head, dimension, batches, "
        "augmentations and steps, and settings in proportion to what is searched, which are judged on training "
        "classes that were left out; the best setting of each is trained over several seeds; then the test classes "
        "are looked at, once. What is called better is so for other classes and other seeds, too. Leaves a folder "
        "with the leaderboard, a report, the best settings as configurations, and the winner as a "
        "run.",
        EXAMPLES,
    )
    words.add_argument("data", nargs="*", metavar="DATA", help="a folder, a CSV file, ... (the embedded glyphs)")
    words.add_argument(
        "--losses",
        nargs="+",
        metavar="NAME",
        help="nearfar losses lists them; CircleLoss is searched over its two forms, CircleLoss/class and "
        "CircleLoss/pair over one (a dozen)",
    )
    words.add_argument(
        "--trials",
        type=whole_number,
        metavar="N",
        help="settings that are tried of a loss with three hyper-parameters, rates included, and of others in "
        "proportion (10); 1: the defaults",
    )
    words.add_argument("--seeds", type=whole_number, metavar="N", help="runs of each loss's best setting (5)")
    words.add_argument(
        "--folds", type=whole_number, metavar="N", help="of the training classes, to judge settings on (4, or fewer)"
    )
    words.add_argument(
        "--budget",
        metavar="TIME",
        help="for everything, such as 90s, 10min or 1h30min: to fit it there are fewer settings, then seeds and folds, "
        "then losses unless they were named; alike for all",
    )
    words.flag("--finetune", help="train the whole network, not a head on cached features")
    words.add_argument("--resume", metavar="FOLDER", help="continue a comparison that was stopped or killed")
    words.add_argument(
        "--null",
        metavar="LOSS",
        help="train its default setting with four times as many seeds as a contestant has (3 each), and deal the runs "
        "out 200 times as if they were of four contestants",
    )
    words.add_argument("--config", metavar="FILE", help="begin with this YAML file")
    words.add_argument("--out", metavar="FOLDER", help="of the comparison (comparisons/DATA-NUMBER)")
    words.flag("--quiet", help="show only the result")
    searched = [f"optimiser.{name}" for name in SEARCHED]
    words.refuse("--lr", *(f"--{name}" for name in searched), because="is searched for every loss: leave it out")
    words.refuse("--loss", because="is for nearfar train: name the losses to compare with --losses")
    words.add_settings(without=("loss", "out", "budget", "data.folds", *searched))
    return words


def run(words: Sequence[str]) -> int:
    """Compare."""
    form = parser()
    options = form.parse_args(words)
    data = one_data_set("compare", options.data)
    if options.resume is not None and (data or form.given - {"resume", "quiet"}):
        raise ConfigError("a comparison resumes as it began: --resume FOLDER takes no other options")
    # Its time runs from here on, through all that is imported below.
    budget = None if options.budget is None else Budget(read_seconds(options.budget, "--budget"))
    from nearfar.compare.comparison import compare
    from nearfar.compare.terminal import print_leaderboard

    if options.resume is not None:
        print_leaderboard(compare(resume=options.resume, quiet=options.quiet))
        return 0
    settings = form.settings_of(options) | ({"out": options.out} if options.out is not None else {})
    if options.null is not None:
        if extra := form.given & {"trials", "folds", "budget", "losses"}:
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


def _names(words: Sequence[str] | None) -> list[str] | None:
    """Losses, separated by spaces or commas."""
    names = [name for word in words or () for name in word.split(",") if name]
    if words and not names:
        raise ConfigError("--losses needs names, such as --losses CircleLoss ArcFaceLoss")
    return names or None
