"""What is served, and what is in the galleries."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

import nearfar
from nearfar.serve.api import ServingHere, answers
from nearfar.serve.images import FORMATS
from nearfar.serve.schema import LABEL_LENGTH, Classes, ItemKey, Items, RunKey, Side, State

router = APIRouter(tags=["gallery"])
Text = Annotated[str, Query(max_length=LABEL_LENGTH, description="That the name contains; case does not matter.")]


@router.get("/state", response_model=State, responses=answers())
def state(serving: ServingHere) -> Any:
    """What is served, and what is allowed."""
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


@router.get("/runs/{run}/items", response_model=Items, responses=answers(422))
def items(
    serving: ServingHere,
    run: RunKey,
    label: Annotated[str | None, Query(max_length=LABEL_LENGTH, description="Of one class alone.")] = None,
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 60,
) -> Any:
    """A part of the gallery, class by class."""
    found = serving.run(run)
    catalogue = found.gallery.catalogue
    rows = range(len(catalogue.ids)) if label is None else catalogue.rows.get(label, range(0))
    shown = [found.item(catalogue, row) for row in rows[offset : offset + limit]]
    return {"total": len(rows), "offset": offset, "items": shown}


@router.get("/runs/{run}/classes", response_model=Classes, responses=answers(422))
def classes(
    serving: ServingHere,
    run: RunKey,
    contains: Text = "",
    offset: Annotated[int, Query(ge=0, le=2**53)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 60,
) -> Any:
    """The classes of the gallery, the first image of each, and how many it has; names that are or begin with the text
    come first.
    """
    found = serving.run(run)
    catalogue = found.gallery.catalogue
    wanted = contains.casefold()
    there = [name for name in catalogue.names if wanted in name.casefold()]
    there.sort(key=lambda name: (name != contains, not name.casefold().startswith(wanted)))
    shown = []
    for name in there[offset : offset + limit]:
        rows = catalogue.rows[name]
        shown.append({"label": name, "images": len(rows), "first": found.item(catalogue, rows[0])})
    return {"total": len(there), "offset": offset, "classes": shown}


@router.get(
    "/runs/{run}/items/{item}/picture",
    response_class=Response,
    responses=answers(422, 503) | {200: {"description": "A small picture.", "content": {"image/webp": {}}}},
)
async def picture(serving: ServingHere, run: RunKey, item: ItemKey, side: Side = "192") -> Response:
    """A small picture of an image of the gallery, made anew from its pixels."""
    gallery = serving.run(run).gallery
    made = await serving.pictures.run(gallery.thumbnail, gallery.image(item), int(side))
    return Response(made, media_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})
