"""What is near a picture, or near an image of the gallery."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from nearfar.serve.api import PICTURE_BODY, PictureSent, ServingHere, answers
from nearfar.serve.schema import Count, Found, ItemKey, RunKey

router = APIRouter(tags=["search"])


@router.post(
    "/runs/{run}/search",
    response_model=Found,
    responses=answers(408, 413, 415, 422, 503),
    openapi_extra=PICTURE_BODY,
)
async def search(serving: ServingHere, run: RunKey, picture: PictureSent, k: Count = 12) -> Any:
    """The nearest images of a picture, which is the body of the request: `curl --data-binary @cat.jpg`."""
    return await serving.slots.run(serving.run(run).search_picture, picture, k, serving.limits.upload_pixels)


@router.get("/runs/{run}/items/{item}/neighbours", response_model=Found, responses=answers(422, 503))
async def neighbours(
    serving: ServingHere,
    run: RunKey,
    item: ItemKey,
    k: Count = 12,
    of: Annotated[
        Literal["a", "b"] | None, Query(description="The run whose gallery the image is in, if it is the other one.")
    ] = None,
) -> Any:
    """The nearest images of an image of the gallery, itself left out."""
    target = serving.run(run)
    if of is None or of == run:
        return await serving.slots.run(target.search_item, item, k)
    return await serving.slots.run(target.search_item_of, serving.run(of), item, k)
