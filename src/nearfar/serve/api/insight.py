"""What the model gets wrong, what thresholds accept, and the map."""

from typing import Any

import numpy as np
from fastapi import APIRouter

from nearfar.serve.api import ServingHere, answers
from nearfar.serve.schema import Map, Mistakes, RunKey, Thresholds

router = APIRouter(tags=["insight"])


@router.get("/runs/{run}/mistakes", response_model=Mistakes, responses=answers(409, 422, 503))
async def mistakes(serving: ServingHere, run: RunKey) -> Any:
    """The worst queries and the most confused classes, the images being searched for as the run is measured."""
    found = serving.run(run)
    return await serving.slots.run(found.mistakes)


@router.get("/runs/{run}/thresholds", response_model=Thresholds, responses=answers(409, 422, 503))
async def thresholds(serving: ServingHere, run: RunKey) -> Any:
    """What every threshold would accept, of pairs and of queries."""
    found = serving.run(run)
    judged = await serving.slots.run(found.insight.judged)
    return {
        "evaluation": judged.evaluation,
        "at": np.round(judged.accepted.at, 5).tolist(),
        "same": judged.accepted.same.tolist(),
        "other": judged.accepted.other.tolist(),
        "queries": len(judged.found.queries),
        "answered": judged.answered.tolist(),
        "right": judged.right.tolist(),
        "calibrated": found.gallery.threshold,
    }


@router.get("/runs/{run}/map", response_model=Map, responses=answers(409, 422, 503))
async def flat_map(serving: ServingHere, run: RunKey) -> Any:
    """A map of a sample of the gallery: what is near each other is alike."""
    found = serving.run(run)
    flat = await serving.slots.run(found.insight.flat_map)
    there = found.gallery.catalogue
    points = [
        (place, int(row), bool(right))
        for place, row, right in zip(flat.places, flat.rows, flat.right, strict=True)
        if flat.catalogue.keys[row] in there.row  # what has been taken away since is no longer shown
    ]
    used = np.unique([flat.catalogue.labels[row] for _, row, _ in points])
    number = {int(label): place for place, label in enumerate(used)}
    return {
        "method": flat.method,
        "x": [round(float(place[0]), 4) for place, _, _ in points],
        "y": [round(float(place[1]), 4) for place, _, _ in points],
        "item": [flat.catalogue.keys[row] for _, row, _ in points],
        "label": [number[int(flat.catalogue.labels[row])] for _, row, _ in points],
        "right": [right for _, _, right in points],
        "names": [flat.catalogue.names[int(label)] for label in used],
    }
