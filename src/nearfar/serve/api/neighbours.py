"""Endpoints that search and identify."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from nearfar.serve.api import PICTURE_BODY, ServingDependency, UploadedPicture, errors
from nearfar.serve.schema import Count, Identification, ItemKey, Neighbours, Rate, RunKey

router = APIRouter(tags=["search"])


@router.post(
    "/runs/{run}/search",
    response_model=Neighbours,
    responses=errors(408, 413, 415, 422, 503),
    openapi_extra=PICTURE_BODY,
)
async def search(serving: ServingDependency, run: RunKey, picture: UploadedPicture, k: Count = 12) -> Any:
    """The nearest images of the picture in the request's body: `curl --data-binary @cat.jpg`."""
    return await serving.slots.run(serving.run(run).search_picture, picture, k, serving.limits.upload_pixels)


@router.post(
    "/runs/{run}/identify",
    response_model=Identification,
    responses=errors(408, 409, 413, 415, 422, 503),
    openapi_extra=PICTURE_BODY,
)
async def identify(serving: ServingDependency, run: RunKey, picture: UploadedPicture, far: Rate = "0.01") -> Any:
    """The class of the picture in the request's body, or none of the gallery's classes."""
    identify_picture = serving.run(run).identify_picture
    return await serving.slots.run(identify_picture, picture, float(far), serving.limits.upload_pixels)


@router.get("/runs/{run}/items/{item}/neighbours", response_model=Neighbours, responses=errors(422, 503))
async def neighbours(
    serving: ServingDependency,
    run: RunKey,
    item: ItemKey,
    k: Count = 12,
    of: Annotated[
        Literal["a", "b"] | None, Query(description="The run whose gallery has the image; by default the searched one.")
    ] = None,
) -> Any:
    """The nearest images of an image of the gallery, without itself."""
    target = serving.run(run)
    if of is None or of == run:
        return await serving.slots.run(target.search_item, item, k)
    return await serving.slots.run(target.search_item_of, serving.run(of), item, k)
