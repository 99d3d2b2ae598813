"""What may stand in a page as it is, and how everything else gets there.

Labels, paths, settings and messages come from data sets and are not to be trusted: they reach a page through `text` or
`json_text` alone. What this package builds itself is `Markup`.
"""

import base64
import html
import json
from typing import Any


class Markup(str):
    """HTML or SVG that is safe to put into a page."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Any value as text, in an element or in an attribute.

    >>> text('<img src=x onerror="run()">')
    '&lt;img src=x onerror=&quot;run()&quot;&gt;'
    """
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(readable(str(value))))


def readable(words: str) -> str:
    """Without what is no text: control characters, and the lone surrogates that Python keeps for bytes of file names
    that are not UTF-8, and that no page can hold.

    >>> readable("name\\udcff\\x1b")
    'name\ufffd\ufffd'
    """
    return "".join(c if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff") else "\ufffd" for c in words)


def json_text(value: Any) -> Markup:
    """A value for a script to read, where no text in it can end the element that it stands in.

    >>> json_text({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    return Markup(json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False).replace("<", "\\u003c"))


def data_uri(kind: str, content: bytes) -> Markup:
    """A file as an address that needs no network.

    >>> data_uri("image/png", b"abc")
    'data:image/png;base64,YWJj'
    """
    return Markup(f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}")
