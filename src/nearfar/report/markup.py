"""Escaping of text in pages.

Labels, paths, settings and messages come from data sets and are untrusted: they reach a page only through `text` or
`json_text`. HTML and SVG built by this package have the type `Markup`.
"""

import base64
import html
import json
from typing import Any


class Markup(str):
    """HTML or SVG that is safe to put into a page."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Escape a value for an element or an attribute. `Markup` is returned unchanged.

    >>> text('<img src=x onerror="run()">')
    '&lt;img src=x onerror=&quot;run()&quot;&gt;'
    """
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(readable(str(value))))


def readable(value: str) -> str:
    """Replace control characters and surrogates, which stand for bytes of file names that are not UTF-8.

    >>> readable("name\\udcff\\x1b")
    'name\ufffd\ufffd'
    """
    return "".join(c if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff") else "\ufffd" for c in value)


def json_text(value: Any) -> Markup:
    """Encode a value as JSON for a script element, which no text in it can end.

    >>> json_text({"name": "</script>"})
    '{"name":"\\\\u003c/script>"}'
    """
    return Markup(json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False).replace("<", "\\u003c"))


def data_uri(kind: str, content: bytes) -> Markup:
    """Encode a file as a data URI.

    >>> data_uri("image/png", b"abc")
    'data:image/png;base64,YWJj'
    """
    return Markup(f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}")
