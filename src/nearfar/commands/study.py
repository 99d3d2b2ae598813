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
    "study gradients": "what triplet, AM-Softmax and Circle loss pull at",
    "study gradients --loss ProxyAnchorLoss": "any loss",
    "study sensitivity CUB_200_2011 --seeds 3": "scale and margin on birds",
    "study NAME --help": "the options of a study",
}


def parser(name: str | None = None) -> Parser:
    """Its words; with the name of a study, those of that study too."""
    if name is None:
        words = Parser(
            "study NAME [DATA] [options]",
            "The papers' analyses, on DATA (a folder of images, CUB, Cars, ..., a CSV file; without it, the embedded "
            "glyphs) or on no data at all. Each leaves a folder with CSV files, figures (PNG and SVG) and a page.",
            EXAMPLES,
        )
        words.add_argument("name", choices=tuple(STUDIES), metavar="NAME", help="nearfar study lists them")
    else:
        from nearfar.studies.study import HeadOptions, own_options, study_module

        module = study_module(name)
        words = Parser(f"study {name} {'[DATA] ' if issubclass(module.Options, HeadOptions) else ''}[options]", "")
        words.description = str(module.__doc__).strip()
    words.add_argument("data", nargs="*", metavar="DATA", help="a folder, a CSV file, ... (the embedded glyphs)")
    words.add_argument(
        "--out",
        metavar="DIR",
        help="its folder (studies/NAME-NUMBER); with the same options, a stopped study continues",
    )
    words.flag("--small", help="the same study in a few seconds")
    words.flag("--quiet", help="show only the findings")
    if name is not None:
        own = own_options(module.Options)
        for option in own.values():
            add_named(words, option.name, option.kind, option.help.replace("%", "%%"), option.name)
        if "loss" in own:
            words.settings.add("loss")
        if issubclass(module.Options, HeadOptions):
            words.add_settings(without=("out", *own))
    return words


def run(words: Sequence[str]) -> int:
    """List the studies, or run one."""
    if not words:
        _list()
        return 0
    name, *rest = words
    if name in ("-h", "--help"):
        parser().parse_args([name])
    if name.startswith("-"):
        raise ConfigError("which study? nearfar study lists them, and its name comes first: nearfar study NAME ...")
    from nearfar.studies.study import PAGE, run_study, study_module

    form = parser(name)
    chosen = form.parse_args(rest)
    options = _chosen(name, study_module(name).Options(), chosen, form.settings_of(chosen))
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
    print("\nnearfar study NAME runs one, nearfar study NAME --help tells its options")


def _chosen(name: str, options: Any, chosen: argparse.Namespace, settings: Mapping[str, Any]) -> Any:
    """The options with what the command line says, which counts more than what makes the study small."""
    if chosen.small:
        named = argparse.Namespace(**{**vars(chosen), "small": False})
        options = _chosen(name, options, named, settings).small()
        return _chosen(name, options, named, settings)
    from nearfar.studies.study import HeadOptions, own_options

    own = own_options(type(options))
    given = {key: convert(value, own[key].kind, key) for key, value in vars(chosen).items() if key in own}
    if "loss" in own:
        loss = {key: value for key, value in settings.items() if key == "loss" or key.startswith("loss.")}
        before: tuple[LossConfig, ...] = options.loss
        given["loss"] = with_options(TrainConfig(loss=before), loss).loss
        settings = {key: value for key, value in settings.items() if key not in loss}
    if isinstance(options, HeadOptions):
        data = one_data_set(name, chosen.data)
        return replace(options, **given, config=configuration(settings, data, base=options.config))
    if chosen.data:
        raise ConfigError(f"{name} takes no data: leave {' '.join(chosen.data)} out")
    return replace(options, **given)
