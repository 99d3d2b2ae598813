"""Who is it, or nobody."""

from typing import Any

from fastapi import APIRouter

from nearfar.serve.api import PICTURE_BODY, PictureSent, ServingHere, answers
from nearfar.serve.schema import Identified, Rate, RunKey

router = APIRouter(tags=["search"])


@router.post(
    "/runs/{run}/identify",
    response_model=Identified,
    responses=answers(408, 409, 413, 415, 422, 503),
    openapi_extra=PICTURE_BODY,
)
async def identify(serving: ServingHere, run: RunKey, picture: PictureSent, far: Rate = "0.01") -> Any:
    """Which of the gallery's classes a picture is of, which is the body of the request, or that it is of none."""
    return await serving.slots.run(serving.run(run).identify_picture, picture, float(far), serving.limits.upload_pixels)
