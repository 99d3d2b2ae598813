"""`nearfar train`."""

from collections.abc import Sequence

from nearfar.commands.grammar import Parser, configuration, one_data_set
from nearfar.training.options import ConfigError, to_yaml

EXAMPLES = {
    "train": "the embedded glyphs, in minutes",
    "train photos": "your pictures, one folder for each class",
    "train photos --freeze": "only the head, on cached features: seconds",
    "train photos --loss CircleLoss --loss.gamma 80": "another loss",
    "train photos --loss 'ArcFaceLoss + 0.5 * CircleLoss'": "a sum of losses",
    "train CUB_200_2011 --recipe cub/proxy-anchor": "as in the paper",
    "train --resume runs/photos-proxyanchor-1": "continue after a stop, to the very same end",
    "train photos --devices 4": "four processes (GPUs); see docs/scale.md",
}


def parser() -> Parser:
    """Its words."""
    words = Parser(
        "train [DATA] [options]",
        "Train an embedding on DATA (a folder of images, CUB, Cars, SOP, In-Shop, Market-1501, a CSV file, ...; "
        "without it, on the embedded glyphs), measure it on classes it has not seen, and leave a run folder.",
        EXAMPLES,
    )
    words.add_argument("data", nargs="*", metavar="DATA", help="a folder, a CSV file, ... (the embedded glyphs)")
    words.add_argument("--config", metavar="FILE", help="begin with this YAML file, such as config.yaml of a run")
    words.add_argument("--recipe", metavar="NAME", help="begin with a paper's protocol; nearfar recipes lists them")
    words.add_argument("--resume", metavar="RUN", help="continue a run that was stopped or killed")
    words.flag("--print-config", help="print the configuration with nothing left open, and stop")
    words.flag("--quiet", help="show only errors")
    words.add_settings()
    return words


def run(words: Sequence[str]) -> int:
    """Train."""
    form = parser()
    options = form.parse_args(words)
    settings = form.settings_of(options)
    data = one_data_set("train", options.data)
    if options.resume is not None:
        if data or form.given & {"config", "recipe", "print_config"}:
            raise ConfigError(
                "a run goes on as it began: --resume RUN takes no other options than devices, accelerator"
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
