"""`nearfar train`."""

from collections.abc import Sequence

from nearfar.commands.words import configuration, options_help, parse
from nearfar.training.options import ConfigError, to_yaml

OWN = {"config": str, "recipe": str, "resume": str, "print_config": bool, "quiet": bool, "help": bool}

HELP = """usage: nearfar train [DATA] [options]

Trains an embedding on DATA (a folder of images, CUB, Cars, SOP, In-Shop, Market-1501, a CSV file, ...; without it, on
the embedded glyphs), measures it on classes it has not seen, and leaves a run folder.

  nearfar train                                            the embedded glyphs, in minutes
  nearfar train photos                                     your pictures, one folder for each class
  nearfar train photos --freeze                            the head alone, on cached features: seconds
  nearfar train photos --loss CircleLoss --loss.gamma 80   another loss; sums: --loss 'ArcFaceLoss + 0.5 * CircleLoss'
  nearfar train CUB_200_2011 --recipe cub/proxy-anchor     as in the paper
  nearfar train --resume runs/photos-proxyanchor-1         go on after a stop, to the very same end
  nearfar train photos --devices 4                         four processes (GPUs); docs/scale.md says more

  --config FILE                   begin with this YAML file, such as config.yaml of a run
  --recipe NAME                   begin with a paper's protocol; nearfar recipes lists them
  --resume RUN                    go on with a run that was stopped or killed
  --print_config                  print the configuration with nothing left open, and stop
  --quiet                         show nothing but errors

Options of data, sampler and model may be written with their section or without it (--model.freeze, --freeze); in YAML
they stand in their section. Truth values need no value. Several values are separated by commas."""


def run(words: Sequence[str]) -> int:
    """Train."""
    if {"-h", "--help"} & set(words):
        print(f"{HELP}\n{options_help()}")
        return 0
    positional, taken, options = parse(words, OWN)
    if len(positional) > 1:
        raise ConfigError(f"train takes one data set, not {len(positional)}: {' '.join(positional)}")
    data = positional[0] if positional else None
    if "resume" in taken:
        if data is not None or set(taken) - {"resume", "quiet"}:
            raise ConfigError(
                "a run goes on as it began: --resume RUN takes no other options than devices, accelerator"
            )
        from nearfar.training.train import train

        train(resume=taken["resume"], quiet=taken.get("quiet", False), **options)
        return 0
    config = configuration(taken, options, data)
    if taken.get("print_config"):
        from nearfar.training.train import resolved

        print(to_yaml(resolved(config)), end="")
        return 0
    from nearfar.training.train import train

    train(config=config, quiet=taken.get("quiet", False))
    return 0
