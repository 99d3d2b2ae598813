"""Something to do about a data set, and how it is shown."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

WIDTH = 100


@dataclass(frozen=True)
class Finding:
    """What is wrong, where, and what to do about it."""

    what: str
    advice: str
    where: tuple[str, ...] = ()


def numbered(findings: Sequence[Finding]) -> str:
    """A list of things to do."""
    lines: list[str] = []
    for number, finding in enumerate(findings, 1):
        lines += wrapped(f"{number:>2}. ", f"{finding.what}. {finding.advice}" if finding.advice else finding.what)
        lines += [f"      {line}" for line in finding.where]
    return "\n".join(lines)


def aligned(facts: Mapping[str, Iterable[str]]) -> str:
    """Names and what is to be said of each, in lines."""
    width = max(map(len, facts)) + 2
    lines: list[str] = []
    for name, values in facts.items():
        head = name
        for value in values:
            lines += wrapped(f"  {head:<{width}}", value)
            head = ""
    return "\n".join(lines)


def wrapped(head: str, text: str) -> list[str]:
    """A paragraph that hangs from its head. Names of files and commands are not broken in two."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def first(lines: Sequence[str], most: int) -> tuple[str, ...]:
    """Some, and how many more there are.

    >>> first(["a", "b", "c"], 1)
    ('a', 'and 2 more')
    """
    more = len(lines) - most
    return (*lines[:most], *([f"and {more:,} more"] if more > 0 else []))
