"""`nearfar study`."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nearfar.commands.grammar import Parser, add_named, configuration, one_data_set
from nearfar.foundation.folders import numbered_folder
from nearfar.studies import STUDIES
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.options import ConfigError, convert, with_options

EXAMPLES = {
    "study": "list the studies",
    "study gradients": "gradients of triplet, AM-Softmax and Circle loss",
    "study gradients --loss ProxyAnchorLoss": "gradients of any loss",
    "study sensitivity CUB_200_2011 --seeds 3": "scale and margin on birds",
    "study NAME --help": "the options of a study",
}


def parser(name: str | None = None) -> Parser:
    """The parser of the command; with the name of a study, including its options."""
    if name is None:
        command = Parser(
            "study NAME [DATA] [options]",
            "Run the analyses of papers, on DATA (a folder of images, CUB, Cars, ..., a CSV file; default: the "
            "built-in glyphs) or without data. Each writes a folder with CSV files, figures (PNG and SVG) and a page.",
            EXAMPLES,
        )
        command.add_argument("name", choices=tuple(STUDIES), metavar="NAME", help="nearfar study lists them")
    else:
        from nearfar.studies.study import HeadOptions, own_options, study_module

        module = study_module(name)
        command = Parser(f"study {name} {'[DATA] ' if issubclass(module.Options, HeadOptions) else ''}[options]", "")
        command.description = str(module.__doc__).strip()
    command.add_argument("data", nargs="*", metavar="DATA", help="a folder, a CSV file, ... (the built-in glyphs)")
    command.add_argument(
        "--out",
        metavar="DIR",
        help="folder of the study (studies/NAME-NUMBER); with the same options, a stopped study resumes",
    )
    command.flag("--small", help="a version that takes a few seconds")
    command.flag("--quiet", help="show only the findings")
    if name is not None:
        study_options = own_options(module.Options)
        for option in study_options.values():
            add_named(command, option.name, option.kind, option.help.replace("%", "%%"), option.name)
        if "loss" in study_options:
            command.settings.add("loss")
        if issubclass(module.Options, HeadOptions):
            command.add_settings(without=("out", *study_options))
    return command


def run(arguments: Sequence[str]) -> int:
    """List the studies, or run one."""
    if not arguments:
        _list()
        return 0
    name, *rest = arguments
    if name in ("-h", "--help"):
        parser().parse_args([name])
    if name.startswith("-"):
        raise ConfigError("the name of a study comes first: nearfar study NAME ...; nearfar study lists them")
    from nearfar.studies.study import PAGE, run_study, study_module

    command = parser(name)
    chosen = command.parse_args(rest)
    options = _chosen(name, study_module(name).Options(), chosen, command.settings_of(chosen))
    quiet = {"progress": lambda text: None} if chosen.quiet else {}
    folder = chosen.out or str(numbered_folder("studies", name))
    for sentence in run_study(name, options, out=folder, **quiet).sentences:
        print(sentence)
    print(f"look at it: {folder}/{PAGE}")
    return 0


def _list() -> None:
    width = max(map(len, STUDIES))
    for name, text in STUDIES.items():
        print(f"{name:<{width}}  {text}")
    print("\nnearfar study NAME runs one, nearfar study NAME --help lists its options")


def _chosen(name: str, options: Any, chosen: argparse.Namespace, settings: Mapping[str, Any]) -> Any:
    """Override the options by those of the command line, which take precedence over --small."""
    if chosen.small:
        named = argparse.Namespace(**{**vars(chosen), "small": False})
        options = _chosen(name, options, named, settings).small()
        return _chosen(name, options, named, settings)
    from nearfar.studies.study import HeadOptions, own_options

    known = own_options(type(options))
    changes = {key: convert(value, known[key].kind, key) for key, value in vars(chosen).items() if key in known}
    if "loss" in known:
        loss = {key: value for key, value in settings.items() if key == "loss" or key.startswith("loss.")}
        before: tuple[LossConfig, ...] = options.loss
        changes["loss"] = with_options(TrainConfig(loss=before), loss).loss
        settings = {key: value for key, value in settings.items() if key not in loss}
    if isinstance(options, HeadOptions):
        data = one_data_set(name, chosen.data)
        return replace(options, **changes, config=configuration(settings, data, base=options.config))
    if chosen.data:
        raise ConfigError(f"{name} takes no data: leave {' '.join(chosen.data)} out")
    return replace(options, **changes)
