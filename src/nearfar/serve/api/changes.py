"""Adding images to the gallery and taking them away. Each change is on the disk before it is answered."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from nearfar.serve.api import PICTURE_BODY, PictureSent, ServingHere, answers
from nearfar.serve.schema import LABEL_LENGTH, Added, ItemKey, Removed, RunKey

_bearer = HTTPBearer(auto_error=False, description="The token that the server printed when it started.")


def writer(
    request: Request,
    serving: ServingHere,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> None:
    """Refuse whoever does not have the token, before anything else is looked at."""
    serving.access.check(given, request.client.host if request.client else "")


router = APIRouter(tags=["changes"], dependencies=[Depends(writer)])


@router.get("/access", status_code=204, responses=answers(401))
def access() -> None:
    """Whether the token is the right one."""


@router.post(
    "/runs/{run}/items",
    status_code=201,
    response_model=Added,
    responses=answers(401, 408, 409, 413, 415, 422, 503, 507),
    openapi_extra=PICTURE_BODY,
)
async def add(
    serving: ServingHere,
    run: RunKey,
    label: Annotated[
        str, Query(min_length=1, max_length=LABEL_LENGTH, description="The name of its class, known or new.")
    ],
    picture: PictureSent,
) -> Any:
    """Add a picture, which is the body of the request, to a class. The same picture again changes its class."""
    name = label.strip()
    if not name or not name.isprintable():
        raise HTTPException(422, "the name of a class is text that can be printed")
    return await serving.slots.run(serving.run(run).add, picture, name, serving.limits.upload_pixels)


@router.delete("/runs/{run}/items/{item}", response_model=Removed, responses=answers(401, 409, 422, 503, 507))
async def remove(serving: ServingHere, run: RunKey, item: ItemKey) -> Any:
    """Take an image out of the gallery. Its file is deleted if it was added here, and left alone elsewhere."""
    return await serving.slots.run(serving.run(run).remove, item)
