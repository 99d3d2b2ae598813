"""Suggestions for misspelt names."""

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name most similar to `name`, ignoring case; else one whose last part is `name`; else None.

    >>> closest("CircelLoss", ["CircleLoss", "SupConLoss"]), closest("freeze", ["model.freeze"]), closest("x", ["seed"])
    ('CircleLoss', 'model.freeze', None)
    """
    known = list(known)
    folded = {word.casefold(): word for word in reversed(known)}
    near = [folded[word] for word in difflib.get_close_matches(name.casefold(), folded, 1)]
    near = near or [word for word in known if word.rpartition(".")[2] == name]
    return near[0] if near else None


def suggestion(name: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """The end of an error about an unknown name: the probable meaning, or the known names.

    >>> suggestion("adamW", ["adamw", "sgd"]), suggestion("lamb", ["adamw", "sgd"])
    ('did you mean adamw?', 'there are adamw, sgd')
    """
    known = list(known)
    near = closest(name, known)
    if near is not None:
        return f"did you mean {near}?"
    return f"there are {', '.join(known)}" if otherwise is None else otherwise
