"""The addresses of the API, one module for each kind, and what they have in common."""

import asyncio
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from starlette.requests import ClientDisconnect

from nearfar.serve.images import FORMATS
from nearfar.serve.runs import Serving

PICTURE_TYPES = (*FORMATS.values(), "application/octet-stream")
PICTURE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A picture: JPEG, PNG, WebP, BMP or GIF.",
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in PICTURE_TYPES},
    }
}
"""Of a request that sends a picture, for the schema."""

_WHY = {
    401: "The token is missing or wrong.",
    403: "Nothing can be changed here, or a page elsewhere asks.",
    404: "There is no such run or image.",
    408: "The picture took too long to arrive.",
    409: "The gallery cannot do or tell this now.",
    413: "The picture is too large.",
    415: "This is no type of picture.",
    422: "A parameter is wrong, or the picture cannot be read.",
    429: "Too many requests.",
    503: "Too busy.",
    507: "The disk is full.",
}


def answers(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The errors of an address, for the schema."""
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {code: {"description": _WHY[code], "content": problem} for code in sorted({403, 404, 429, *codes})}


def serving(request: Request) -> Serving:
    """What is served."""
    found: Serving = request.app.state.serving
    return found


ServingHere = Annotated[Serving, Depends(serving)]


async def picture_sent(request: Request, serving: ServingHere) -> bytes:
    """The body of a request, refused as soon as it is too large, too slow, or of another type."""
    kind = request.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()
    if kind not in PICTURE_TYPES:
        known = ", ".join(FORMATS.values())
        raise HTTPException(415, f"{kind[:50]!r} is not a type of picture that is read here: {known}")
    most = serving.limits.upload_bytes
    too_large = HTTPException(413, f"a picture may have {most:,} bytes", {"Connection": "close"})
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > most:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(serving.limits.upload_seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > most:
                    raise too_large
    except TimeoutError:
        seconds = serving.limits.upload_seconds
        raise HTTPException(408, f"the picture did not arrive in {seconds:g} s", {"Connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection was closed") from None  # no one is there to hear it
    return bytes(content)


PictureSent = Annotated[bytes, Depends(picture_sent)]
