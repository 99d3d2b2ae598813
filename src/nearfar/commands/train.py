"""`nearfar train`."""

from collections.abc import Sequence

from nearfar.commands.grammar import Parser, configuration, one_data_set
from nearfar.training.options import ConfigError, to_yaml

EXAMPLES = {
    "train": "the built-in glyphs, in minutes",
    "train photos": "your pictures, one folder for each class",
    "train photos --freeze": "only the head, on cached features: seconds",
    "train photos --loss CircleLoss --loss.gamma 80": "another loss",
    "train photos --loss 'ArcFaceLoss + 0.5 * CircleLoss'": "a sum of losses",
    "train CUB_200_2011 --recipe cub/proxy-anchor": "as in the paper",
    "train --resume runs/photos-proxyanchor-1": "resume after a stop, with the same result",
    "train photos --devices 4": "four processes (GPUs); see docs/scale.md",
}


def parser() -> Parser:
    """The parser of the command."""
    command = Parser(
        "train [DATA] [options]",
        "Train an embedding on DATA (a folder of images, CUB, Cars, SOP, In-Shop, Market-1501, a CSV file, ...; "
        "default: the built-in glyphs), evaluate it on unseen classes, and write a run folder.",
        EXAMPLES,
    )
    command.add_argument("data", nargs="*", metavar="DATA", help="a folder, a CSV file, ... (the built-in glyphs)")
    command.add_argument("--config", metavar="FILE", help="start from this YAML file, such as config.yaml of a run")
    command.add_argument("--recipe", metavar="NAME", help="start from a paper's protocol; nearfar recipes lists them")
    command.add_argument("--resume", metavar="RUN", help="resume a run that was stopped or killed")
    command.flag("--print-config", help="print the resolved configuration, and stop")
    command.flag("--quiet", help="show only errors")
    command.add_settings()
    return command


def run(arguments: Sequence[str]) -> int:
    """Train an embedding."""
    command = parser()
    options = command.parse_args(arguments)
    settings = command.settings_of(options)
    data = one_data_set("train", options.data)
    if options.resume is not None:
        if data or command.given & {"config", "recipe", "print_config"}:
            raise ConfigError(
                "a run is resumed with its own settings: --resume RUN takes no options but devices and accelerator"
            )
        from nearfar.training.train import train

        train(resume=options.resume, quiet=options.quiet, **settings)
        return 0
    config = configuration(settings, data, options.config, options.recipe)
    if options.print_config:
        from nearfar.training.train import resolved

        print(to_yaml(resolved(config)), end="")
        return 0
    from nearfar.training.train import train

    train(config=config, quiet=options.quiet)
    return 0
