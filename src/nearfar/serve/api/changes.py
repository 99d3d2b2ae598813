"""Endpoints that add and remove images. Each change is on the disk before the response is sent."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from nearfar.serve.api import PICTURE_BODY, ServingDependency, UploadedPicture, errors
from nearfar.serve.schema import LABEL_LENGTH, AddedItem, ItemKey, RemovedItem, RunKey

_bearer = HTTPBearer(auto_error=False, description="The token that the server printed when it started.")


def writer(
    request: Request,
    serving: ServingDependency,
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> None:
    """Refuse requests without the token, before anything else is checked."""
    serving.access.check(credentials, request.client.host if request.client else "")


router = APIRouter(tags=["changes"], dependencies=[Depends(writer)])


@router.get("/access", status_code=204, responses=errors(401))
def access() -> None:
    """Check the token."""


@router.post(
    "/runs/{run}/items",
    status_code=201,
    response_model=AddedItem,
    responses=errors(401, 408, 409, 413, 415, 422, 503, 507),
    openapi_extra=PICTURE_BODY,
)
async def add(
    serving: ServingDependency,
    run: RunKey,
    label: Annotated[
        str, Query(min_length=1, max_length=LABEL_LENGTH, description="The name of its class, existing or new.")
    ],
    picture: UploadedPicture,
) -> Any:
    """Add the picture in the request's body to a class. Adding the same picture again changes its class."""
    name = label.strip()
    if not name or not name.isprintable():
        raise HTTPException(422, "the name of a class must be printable text")
    return await serving.slots.run(serving.run(run).add, picture, name, serving.limits.upload_pixels)


@router.delete("/runs/{run}/items/{item}", response_model=RemovedItem, responses=errors(401, 409, 422, 503, 507))
async def remove(serving: ServingDependency, run: RunKey, item: ItemKey) -> Any:
    """Remove an image from the gallery. Its file is deleted only if it was added through this API."""
    return await serving.slots.run(serving.run(run).remove, item)
