"""Endpoints for mistakes, thresholds and the map."""

from typing import Any

import numpy as np
from fastapi import APIRouter

from nearfar.serve.api import ServingDependency, errors
from nearfar.serve.schema import GalleryMap, Mistakes, RunKey, Thresholds

router = APIRouter(tags=["insight"])


@router.get("/runs/{run}/mistakes", response_model=Mistakes, responses=errors(409, 422, 503))
async def mistakes(serving: ServingDependency, run: RunKey) -> Any:
    """The worst queries and the most confused classes, under the protocol of the run."""
    return await serving.slots.run(serving.run(run).mistakes)


@router.get("/runs/{run}/thresholds", response_model=Thresholds, responses=errors(409, 422, 503))
async def thresholds(serving: ServingDependency, run: RunKey) -> Any:
    """The pairs and queries that each threshold accepts."""
    served = serving.run(run)
    diagnosis = await serving.slots.run(served.analysis.diagnosis)
    return {
        "evaluation": diagnosis.evaluation,
        "at": np.round(diagnosis.accepted.at, 5).tolist(),
        "same": diagnosis.accepted.same.tolist(),
        "other": diagnosis.accepted.other.tolist(),
        "queries": len(diagnosis.results.queries),
        "answered": diagnosis.answered.tolist(),
        "right": diagnosis.right.tolist(),
        "calibrated": served.gallery.threshold,
    }


@router.get("/runs/{run}/map", response_model=GalleryMap, responses=errors(409, 422, 503))
async def flat_map(serving: ServingDependency, run: RunKey) -> Any:
    """A two-dimensional map of a sample of the gallery, in which similar images are near each other."""
    served = serving.run(run)
    flat = await serving.slots.run(served.analysis.flat_map)
    current = served.gallery.catalogue
    points = [
        (position, int(row), bool(right))
        for position, row, right in zip(flat.positions, flat.rows, flat.right, strict=True)
        if flat.catalogue.keys[row] in current.row  # the map may contain images that were removed since
    ]
    used = np.unique([flat.catalogue.labels[row] for _, row, _ in points])
    number = {int(label): index for index, label in enumerate(used)}
    return {
        "method": flat.method,
        "x": [round(float(position[0]), 4) for position, _, _ in points],
        "y": [round(float(position[1]), 4) for position, _, _ in points],
        "item": [flat.catalogue.keys[row] for _, row, _ in points],
        "label": [number[int(flat.catalogue.labels[row])] for _, row, _ in points],
        "right": [right for _, _, right in points],
        "names": [flat.catalogue.names[int(label)] for label in used],
    }
