"""The endpoints of the API, one module for each group, and what they share."""

import asyncio
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Request
from starlette.requests import ClientDisconnect

from nearfar.serve.images import FORMATS
from nearfar.serve.served_run import Serving

PICTURE_TYPES = (*FORMATS.values(), "application/octet-stream")
PICTURE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A picture: JPEG, PNG, WebP, BMP or GIF.",
        "content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in PICTURE_TYPES},
    }
}
"""OpenAPI description of a request with a picture as its body."""

_DESCRIPTIONS = {
    401: "The token is missing or wrong.",
    403: "The server is read-only, or the request is cross-origin.",
    404: "There is no such run or image.",
    408: "The picture took too long to arrive.",
    409: "The gallery does not allow this now.",
    413: "The picture is too large.",
    415: "The content type is not supported.",
    422: "A parameter is wrong, or the picture cannot be read.",
    429: "Too many requests.",
    503: "Too busy.",
    507: "The disk is full.",
}


def errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI description of an endpoint's errors."""
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {code: {"description": _DESCRIPTIONS[code], "content": problem} for code in sorted({403, 404, 429, *codes})}


def serving(request: Request) -> Serving:
    """The served runs of the application."""
    state: Serving = request.app.state.serving
    return state


ServingDependency = Annotated[Serving, Depends(serving)]


async def uploaded_picture(request: Request, serving: ServingDependency) -> bytes:
    """The body of a request, refused as soon as it is too large, too slow, or of another type."""
    kind = request.headers.get("content-type", "application/octet-stream").partition(";")[0].strip().lower()
    if kind not in PICTURE_TYPES:
        known = ", ".join(FORMATS.values())
        raise HTTPException(415, f"content type {kind[:50]!r} is not supported: send {known}")
    max_bytes = serving.limits.upload_bytes
    too_large = HTTPException(413, f"a picture may have at most {max_bytes:,} bytes", {"Connection": "close"})
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > max_bytes:
        raise too_large
    content = bytearray()
    try:
        async with asyncio.timeout(serving.limits.upload_seconds):
            async for chunk in request.stream():
                content += chunk
                if len(content) > max_bytes:
                    raise too_large
    except TimeoutError:
        seconds = serving.limits.upload_seconds
        raise HTTPException(408, f"the picture did not arrive in {seconds:g} s", {"Connection": "close"}) from None
    except ClientDisconnect:
        raise HTTPException(400, "the connection was closed") from None  # nobody receives this
    return bytes(content)


UploadedPicture = Annotated[bytes, Depends(uploaded_picture)]
