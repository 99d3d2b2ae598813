"""`nearfar compare`."""

from collections.abc import Sequence

from nearfar.commands.words import configuration, options_help, parse
from nearfar.compare.budget import Budget
from nearfar.foundation.durations import read_seconds
from nearfar.training.options import ConfigError, convert

OWN = {
    "losses": str,
    "trials": str,
    "seeds": str,
    "folds": str,
    "budget": str,
    "finetune": bool,
    "resume": str,
    "config": str,
    "quiet": bool,
    "help": bool,
}

SEARCHED = ("optimiser.lr", "optimiser.proxies")  # for every loss

HELP = """usage: nearfar compare [DATA] [options]

Which loss is best on DATA (a folder of images, CUB, Cars, SOP, In-Shop, Market-1501, a CSV file, ...; without it, the
embedded glyphs)? All losses get the same network, head, dimension, batches, augmentations and steps, and equally many
settings, which are judged on training classes that were left out; the best setting of each is trained over several
seeds; then the test classes are looked at, once. Leaves a folder with the leaderboard, a report, the best settings as
configurations, and the winner as a run.

  nearfar compare photos                                           a dozen losses, heads on cached features
  nearfar compare photos --budget 10min                            as much as fits into ten minutes
  nearfar compare photos --losses CircleLoss ProxyAnchorLoss       these alone
  nearfar compare photos --finetune --trials 4                     the whole network
  nearfar compare --resume comparisons/photos-1                    go on after a stop, to the very same end

  --losses NAME NAME ...          nearfar losses lists them; CircleLoss/class is the class-level form of CircleLoss
  --trials N                      settings of each loss that are tried (10)
  --seeds N                       runs of each loss's best setting (3)
  --folds N                       of the training classes, to judge settings on (4, fewer with few classes)
  --budget TIME                   for everything, such as 90s, 10min or 1h30min: to fit it there are fewer settings,
                                  then seeds and folds, then losses unless they were named; alike for all
  --finetune                      train the whole network, not a head on cached features
  --resume FOLDER                 go on with a comparison that was stopped or killed
  --config FILE                   begin with this YAML file
  --out FOLDER                    of the comparison; default: comparisons/DATA-NUMBER
  --quiet                         show nothing but the result

The options below are shared by all losses. Rates are not among them: they are searched for every loss."""


def run(words: Sequence[str]) -> int:
    """Compare."""
    if {"-h", "--help"} & set(words):
        print(f"{HELP}\n{options_help(without=('loss', 'out', *SEARCHED))}")
        return 0
    rest, losses = take_losses(words)
    positional, taken, options = parse(rest, OWN)
    if len(positional) > 1:
        raise ConfigError(f"compare takes one data set, not {len(positional)}: {' '.join(positional)}")
    if "resume" in taken and (positional or options or losses is not None or set(taken) - {"resume", "quiet"}):
        raise ConfigError("a comparison goes on as it began: --resume FOLDER takes no other options")
    for name in ("lr", *SEARCHED):
        if name in options:
            raise ConfigError(f"--{name} is searched for every loss: leave it out")
    if any(name == "loss" or name.startswith("loss.") for name in options):
        raise ConfigError("--loss is for nearfar train: name the losses to compare with --losses")
    # First of all: its time runs from here on, through all that is loaded below.
    budget = Budget(read_seconds(taken["budget"], "--budget")) if "budget" in taken else None
    from nearfar.compare.comparison import compare
    from nearfar.compare.live import print_leaderboard

    quiet = taken.get("quiet", False)
    if "resume" in taken:
        print_leaderboard(compare(resume=taken["resume"], quiet=quiet))
        return 0
    counts = {name: convert(taken[name], int, name) for name in ("trials", "seeds", "folds") if name in taken}
    config = configuration(taken, options, positional[0] if positional else None)
    board = compare(
        config=config,
        losses=losses,
        budget=budget,
        finetune=taken.get("finetune", False),
        quiet=quiet,
        **counts,
    )
    print_leaderboard(board)
    return 0


def take_losses(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The words without `--losses NAME NAME ...`, which reaches to the next option, and the names.

    >>> take_losses(["photos", "--losses", "CircleLoss", "ArcFaceLoss", "--trials", "3"])
    (['photos', '--trials', '3'], ['CircleLoss', 'ArcFaceLoss'])
    """
    places = [place for place, word in enumerate(words) if word.partition("=")[0] == "--losses"]
    if not places:
        return list(words), None
    if len(places) > 1:
        raise ConfigError("--losses is given twice")
    first = places[0]
    end = next((i for i in range(first + 1, len(words)) if words[i].startswith("--")), len(words))
    given = [words[first].partition("=")[2], *words[first + 1 : end]]
    names = [name for word in given for name in word.split(",") if name]
    if not names:
        raise ConfigError("--losses needs names, such as --losses CircleLoss ArcFaceLoss")
    return [*words[:first], *words[end:]], names
