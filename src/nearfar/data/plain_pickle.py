"""Reads pickles of lists, bytes, booleans and numbers without executing them.

Unpickling runs a program that the author of the file has written. This reader supports only the instructions that build
lists, tuples, bytes, booleans and integers, and refuses all others, so nothing is imported or called. Byte strings are
returned as byte ranges of the file.
"""

import io
import pickletools
from pathlib import Path
from typing import Any, NamedTuple

from nearfar.data.parsing import LayoutError


class ByteRange(NamedTuple):
    """The position of a byte string in the file."""

    offset: int
    length: int


# Instructions that push bytes, with the number of bytes before them (opcode and length).
_BYTES = {"SHORT_BINBYTES": 2, "BINBYTES": 5, "BINBYTES8": 9, "SHORT_BINSTRING": 2, "BINSTRING": 5}
_INTEGERS = frozenset({"BININT", "BININT1", "BININT2", "LONG1", "INT"})  # INT also writes old booleans
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PUT = frozenset({"BINPUT", "LONG_BINPUT"})
_GET = frozenset({"BINGET", "LONG_BINGET"})


def read_plain_pickle(path: Path) -> Any:
    """Nested lists and tuples of `ByteRange`, bool and int. Raises `LayoutError` for anything else."""
    try:
        return _run(path.read_bytes())
    except LayoutError as error:
        raise LayoutError(f"{path}: {error}") from None
    except (ValueError, IndexError, KeyError, TypeError) as error:  # not a pickle, or an incomplete one
        raise LayoutError(f"{path} is not a complete pickle: {error}") from error


def _run(data: bytes) -> Any:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    argument: Any
    for opcode, argument, position in pickletools.genops(io.BytesIO(data)):
        name, offset = opcode.name, position or 0
        if name in _BYTES:
            # Arguments of text instructions are decoded byte by byte, so their lengths are right.
            stack.append(ByteRange(offset + _BYTES[name], len(argument)))
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
            items = _pop_from(stack, marks.pop())
            stack.append(items if name == "LIST" else tuple(items))
        elif name in _TUPLES:
            stack.append(tuple(_pop_from(stack, len(stack) - _TUPLES[name])))
        elif name in ("APPEND", "APPENDS"):
            items = _pop_from(stack, len(stack) - 1 if name == "APPEND" else marks.pop())
            if not isinstance(stack[-1], list):
                raise LayoutError("it appends to a value that is not a list")
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
                f"refused: it holds the pickle instruction {name} at byte {offset}. Only lists of bytes, booleans "
                "and numbers are read, because other pickles can run code"
            )
    raise LayoutError("it has no end")


def _pop_from(stack: list[Any], start: int) -> list[Any]:
    if start < 0:
        raise IndexError("the stack is empty")
    items = stack[start:]
    del stack[start:]
    return items
