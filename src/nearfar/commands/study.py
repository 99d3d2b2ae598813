"""`nearfar study`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nearfar.commands.words import entry, options_help, parse
from nearfar.foundation.folders import numbered_folder
from nearfar.studies import STUDIES
from nearfar.training.config import LossConfig, TrainConfig
from nearfar.training.options import ConfigError, Option, convert, with_options

OWN = {"out": str, "small": bool, "quiet": bool, "help": bool}
COMMON = (
    ("out", "the folder; default: studies/NAME-NUMBER. The same study is gone on with where it was"),
    ("small", "the same study in a few seconds"),
    ("quiet", "show nothing but the findings"),
)

HELP = """usage: nearfar study NAME [DATA] [options]

The papers' analyses, on DATA (a folder of images, CUB, Cars, ..., a CSV file; without it, the embedded glyphs) or on no
data at all. Each leaves a folder with CSV files, figures (PNG and SVG) and a page to look at.

  nearfar study                                        list the studies
  nearfar study gradients                              what triplet, AM-Softmax and Circle loss pull at
  nearfar study gradients --loss ProxyAnchorLoss       any loss
  nearfar study sensitivity CUB_200_2011 --seeds 3     scale and margin on birds
  nearfar study NAME --help                            the options of a study

  --out DIR                       the folder; default: studies/NAME-NUMBER. A study that was stopped goes on where it
                                  was when it is run again with the same options and the same --out
  --small                         the same study in a few seconds
  --quiet                         show nothing but the findings"""


def run(words: Sequence[str]) -> int:
    """List the studies, or run one."""
    names = [word for word in words if not word.startswith("-")]
    asked = bool({"-h", "--help"} & set(words))
    if not words:
        _list()
        return 0
    if asked and not names:
        print(HELP)
        return 0
    if words[0].startswith("-"):
        raise ConfigError("which study? nearfar study lists them, and its name comes first: nearfar study NAME ...")
    name, *rest = words
    from nearfar.studies.study import PAGE, own_options, run_study, study_module

    module = study_module(name)
    if asked:
        print(_help(name, module))
        return 0
    own = own_options(module.Options)
    kinds = {key: bool if one.kind is bool else str for key, one in own.items() if key != "loss"}
    positional, taken, others = parse(rest, OWN | kinds)
    options = _chosen(name, module.Options(), positional, taken, others)
    quiet = {"progress": lambda text: None} if taken.get("quiet") else {}
    folder = taken.get("out") or str(numbered_folder("studies", name))
    found = run_study(name, options, out=folder, **quiet)
    for sentence in found.sentences:
        print(sentence)
    print(f"look at it: {folder}/{PAGE}")
    return 0


def _list() -> None:
    width = max(map(len, STUDIES))
    for name, text in STUDIES.items():
        print(f"{name:<{width}}  {text}")
    print("\nnearfar study NAME runs one, nearfar study NAME --help tells its options")


def _help(name: str, module: Any) -> str:
    from nearfar.studies.study import HeadOptions, own_options

    trains = issubclass(module.Options, HeadOptions)
    usage = f"usage: nearfar study {name} {'[DATA] ' if trains else ''}[options]"
    lines = [usage, "", str(module.__doc__).strip(), ""]
    for one in (*own_options(module.Options).values(), *(Option(key, OWN[key], None, text) for key, text in COMMON)):
        lines += entry(one)
    if trains:
        lines += ["", "Options of the data, the model and the training, as of nearfar train:", options_help()]
    return "\n".join(lines)


def _chosen(
    name: str, options: Any, positional: Sequence[str], taken: Mapping[str, Any], others: Mapping[str, Any]
) -> Any:
    """The options with what the command line says."""
    from nearfar.studies.study import HeadOptions, own_options

    if taken.get("small"):
        options = options.small()
    own = own_options(type(options))
    given = {key: convert(value, own[key].kind, key) for key, value in taken.items() if key in own}
    loss = {key: value for key, value in others.items() if key == "loss" or key.startswith("loss.")}
    if loss and "loss" in own:
        before: tuple[LossConfig, ...] = options.loss
        given["loss"] = with_options(TrainConfig(loss=before), loss).loss
        others = {key: value for key, value in others.items() if key not in loss}
    if not isinstance(options, HeadOptions):
        if positional:
            raise ConfigError(f"{name} takes no data: leave {' '.join(positional)} out")
        if others:
            raise ConfigError(f"{name} has no option --{next(iter(others))}: nearfar study {name} --help lists them")
        return replace(options, **given)
    if len(positional) > 1:
        raise ConfigError(f"{name} takes one data set, not {len(positional)}: {' '.join(positional)}")
    if loss and "loss" not in own:
        raise ConfigError(f"{name} has no option --{next(iter(loss))}: nearfar study {name} --help lists them")
    if positional and {"path", "data.path"} & set(others):
        raise ConfigError("DATA and --data.path are the same: give one of them")
    changed = {**({"data.path": positional[0]} if positional else {}), **others}
    return replace(options, **given, config=with_options(options.config, changed))
