"""Reading a pickle that holds nothing but lists of bytes, booleans and numbers, without executing it.

A pickle is a program, and the general reader runs it: whoever wrote the file decides what happens. This reader knows
only the instructions that make lists, tuples, bytes, booleans and integers, and refuses every other one; nothing can be
imported or called. Byte strings are not even copied: they are given as their place in the file.
"""

import io
import pickletools
from pathlib import Path
from typing import Any, NamedTuple

from nearfar.data.lists import LayoutError


class Place(NamedTuple):
    """Where a byte string is in the file."""

    offset: int
    length: int


# Instructions that push bytes, with the size of what stands before the bytes: the instruction itself, and the length.
_BYTES = {"SHORT_BINBYTES": 2, "BINBYTES": 5, "BINBYTES8": 9, "SHORT_BINSTRING": 2, "BINSTRING": 5}
_INTEGERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "INT"})  # INT also writes old booleans
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUT = frozenset({"BINPUT", "LONG_BINPUT"})
_GET = frozenset({"BINGET", "LONG_BINGET"})


def read_plain_pickle(path: Path) -> Any:
    """Nested lists and tuples of `Place`, bool and int. Raises `LayoutError` for anything else."""
    try:
        return _run(path.read_bytes())
    except LayoutError as error:
        raise LayoutError(f"{path}: {error}") from None
    except (ValueError, IndexError, KeyError, TypeError) as error:  # bytes that are no pickle, or an incomplete one
        raise LayoutError(f"{path} is not a complete pickle: {error}") from error


def _run(data: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, position in pickletools.genops(io.BytesIO(data)):
        name, at = opcode.name, position or 0
        if name in _BYTES:
            # Text instructions give their argument decoded, byte for byte, so that the lengths agree.
            stack.append(Place(at + _BYTES[name], len(argument)))
        elif name in _INTEGERS:
            stack.append(argument)
        elif name in ("NEWTRUE", "NEWFALSE"):
            stack.append(name == "NEWTRUE")
        elif name == "EMPTY_LIST":
            stack.append([])
        elif name == "EMPTY_TUPLE":
            stack.append(())
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("LIST", "TUPLE"):
            items = _cut(stack, marks.pop())
            stack.append(items if name == "LIST" else tuple(items))
        elif name in _TUPLES:
            stack.append(tuple(_cut(stack, len(stack) - _TUPLES[name])))
        elif name in ("APPEND", "APPENDS"):
            items = _cut(stack, len(stack) - 1 if name == "APPEND" else marks.pop())
            if not isinstance(stack[-1], list):
                raise LayoutError("it appends to what is no list")
            stack[-1].extend(items)
        elif name in _PUT:
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in _GET:
            stack.append(memo[argument])
        elif name == "STOP":
            if len(stack) != 1 or marks:
                raise LayoutError("it ends with an unfinished value")
            return stack[0]
        elif name not in ("PROTO", "FRAME"):
            raise LayoutError(
                f"refused: it holds the pickle instruction {name} at byte {at}. Only lists of bytes, booleans and "
                "numbers are read, since other pickles can run code"
            )
    raise LayoutError("it has no end")


def _cut(stack: list[Any], start: int) -> list[Any]:
    if start < 0:
        raise IndexError("the stack is empty")
    items = stack[start:]
    del stack[start:]
    return items
