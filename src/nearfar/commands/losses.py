"""`nearfar losses`."""

import inspect
from collections.abc import Sequence

from nearfar.commands.grammar import Parser
from nearfar.training.loss_defaults import described
from nearfar.training.options import loss_info


def parser() -> Parser:
    """The parser of the command."""
    command = Parser("losses [NAME]", "List the losses, or show one of them.")
    command.add_argument("name", nargs="?", metavar="NAME", help="show this loss's formula, arguments and paper")
    return command


def run(arguments: Sequence[str]) -> int:
    """List the losses, or show one."""
    chosen = parser().parse_args(arguments).name
    if chosen is not None:
        _show(chosen)
        return 0
    from nearfar.losses import list_losses, list_penalties

    infos, penalties = list_losses(), list_penalties()
    width = max(len(info.name) for info in infos)
    for info in (*infos, *penalties):
        print(f"{info.name:<{width}}  {info.level:<13}  {info.summary}")
    print(f"\n{len(infos)} losses; nearfar losses NAME shows one, nearfar train --loss NAME trains with it")
    print(f"{len(penalties)} penalties on binary codes: --head hash --loss 'ProxyAnchorLoss + 0.1 * QuantizationLoss'")
    return 0


def _show(name: str) -> None:
    info = loss_info(name)
    level = info.level if info.level == "penalty" else f"{info.level}-level"
    print(f"{info.name} ({level})\n{info.paper}\n\n  {info.formula}\n")
    print(f"{inspect.getdoc(info.loss)}\n\narguments:")
    if info.level == "pair or class":
        print(f"  {'--loss.class_level':<28} false; true compares with class weights, not with samples")
    for argument, default in info.arguments.items():
        if argument in ("num_classes", "embedding_size"):
            print(f"  {argument:<28} from the data and the model")
        else:
            print(f"  {f'--loss.{argument}':<28} {'required' if default is inspect.Parameter.empty else default}")
    if info.level in ("towers", "penalty"):
        return
    norm = "any norm" if info.free_norm else "norm 1"
    print(f"\ndefined on features of {norm}. Default rates (for AdamW) and warm-up:")
    print("\n".join(described(info.name)))
    if info.level == "pair or class":
        print("\n".join(["compared with class weights:", *described(info.name, class_level=True)]))
