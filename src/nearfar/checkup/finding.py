"""`Finding`: a problem of a data set, and its text."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

WIDTH = 100


@dataclass(frozen=True)
class Finding:
    """A problem, what to do about it, and where it occurs."""

    what: str
    advice: str
    where: tuple[str, ...] = ()


def numbered(findings: Sequence[Finding]) -> str:
    """Format findings as a numbered list."""
    lines: list[str] = []
    for number, finding in enumerate(findings, 1):
        lines += wrapped(f"{number:>2}. ", f"{finding.what}. {finding.advice}" if finding.advice else finding.what)
        lines += [f"      {line}" for line in finding.where]
    return "\n".join(lines)


def aligned(facts: Mapping[str, Iterable[str]]) -> str:
    """Format facts as aligned lines."""
    width = max(map(len, facts)) + 2
    lines: list[str] = []
    for name, values in facts.items():
        head = name
        for value in values:
            lines += wrapped(f"  {head:<{width}}", value)
            head = ""
    return "\n".join(lines)


def wrapped(head: str, text: str) -> list[str]:
    """Wrap a paragraph with a hanging indent, without breaking names of files and commands."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def first(lines: Sequence[str], most: int) -> tuple[str, ...]:
    """The first lines, and the number of further ones.

    >>> first(["a", "b", "c"], 1)
    ('a', 'and 2 more')
    """
    more = len(lines) - most
    return (*lines[:most], *([f"and {more:,} more"] if more > 0 else []))
