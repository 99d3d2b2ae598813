"""Endpoints for the state of the server and the contents of the galleries."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

import nearfar
from nearfar.serve.api import ServingDependency, errors
from nearfar.serve.images import FORMATS
from nearfar.serve.schema import LABEL_LENGTH, Classes, ItemKey, Items, RunKey, Side, State

router = APIRouter(tags=["gallery"])
Text = Annotated[str, Query(max_length=LABEL_LENGTH, description="Text that the name contains, ignoring case.")]


@router.get("/state", response_model=State, responses=errors())
def state(serving: ServingDependency) -> Any:
    """The served runs and the limits."""
    limits = {
        "bytes": serving.limits.upload_bytes,
        "pixels": serving.limits.upload_pixels,
        "types": list(FORMATS.values()),
    }
    return {
        "version": nearfar.__version__,
        "runs": [run.state() for run in serving.runs.values()],
        "limits": limits,
        "writable": serving.access.possible,
    }


@router.get("/runs/{run}/items", response_model=Items, responses=errors(422))
def items(
    serving: ServingDependency,
    run: RunKey,
    label: Annotated[str | None, Query(max_length=LABEL_LENGTH, description="Only images of this class.")] = None,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 60,
) -> Any:
    """A page of the gallery's images, sorted by class."""
    served = serving.run(run)
    catalogue = served.gallery.catalogue
    rows = range(len(catalogue.ids)) if label is None else catalogue.rows.get(label, range(0))
    page = [served.item(catalogue, row) for row in rows[offset : offset + limit]]
    return {"total": len(rows), "offset": offset, "items": page}


@router.get("/runs/{run}/classes", response_model=Classes, responses=errors(422))
def classes(
    serving: ServingDependency,
    run: RunKey,
    contains: Text = "",
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 60,
) -> Any:
    """A page of the gallery's classes with their first images and sizes. Names that equal or begin with the text come
    first.
    """
    served = serving.run(run)
    catalogue = served.gallery.catalogue
    text = contains.casefold()
    names = [name for name in catalogue.names if text in name.casefold()]
    names.sort(key=lambda name: (name != contains, not name.casefold().startswith(text)))
    page = []
    for name in names[offset : offset + limit]:
        rows = catalogue.rows[name]
        page.append({"label": name, "images": len(rows), "first": served.item(catalogue, rows[0])})
    return {"total": len(names), "offset": offset, "classes": page}


@router.get(
    "/runs/{run}/items/{item}/picture",
    response_class=Response,
    responses=errors(422, 503) | {200: {"description": "A thumbnail.", "content": {"image/webp": {}}}},
)
async def picture(serving: ServingDependency, run: RunKey, item: ItemKey, side: Side = "192") -> Response:
    """A thumbnail of an image of the gallery, encoded from its pixels."""
    gallery = serving.run(run).gallery
    webp = await serving.thumbnail_slots.run(gallery.thumbnail, gallery.image(item), int(side))
    return Response(webp, media_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})
