"""The responses of the API."""

from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field

RunKey = Annotated[Literal["a", "b"], Path(description="a: the first run of the command line; b: the second.")]
ItemKey = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="The key of an image of the gallery.")]
Count = Annotated[int, Query(ge=1, le=100, description="The number of neighbours.")]
Side = Annotated[Literal["96", "192", "384"], Query(description="The largest number of pixels of the longer side.")]
Rate = Annotated[
    Literal["0.01", "0.05", "0.1", "0.2"],
    Query(description="The false accept rate: the share of pictures of unknown classes that may be named."),
]
LABEL_LENGTH = 200


class Problem(BaseModel):
    """An error, and what to do about it."""

    detail: str


class Metrics(BaseModel):
    """The metrics of a run on its test rows."""

    recall_at_1: float | None = None
    map_at_r: float | None = None


class RunState(BaseModel):
    """A run that is served."""

    key: Literal["a", "b"]
    name: str
    loss: str
    data: str
    images: int
    classes: int
    dimension: int
    index: str = Field(description="exact, hnsw or ivfpq")
    threshold: float | None = Field(description="The similarity from which two images count as the same class.")
    threshold_note: str | None = Field(
        description="The threshold's precision and recall on the test classes, in words."
    )
    metrics: Metrics


class UploadLimits(BaseModel):
    """The limits on uploads."""

    bytes: int
    pixels: int
    types: list[str]


class State(BaseModel):
    """The served runs and the limits."""

    version: str
    runs: list[RunState]
    limits: UploadLimits
    writable: bool = Field(description="Whether images can be added and removed, with the token.")


class Item(BaseModel):
    """An image of the gallery."""

    item: str
    label: str | None
    name: str = Field(description="Its file name without folders, or its row.")


class Neighbour(Item):
    """A neighbour of a query."""

    similarity: float
    match: bool | None = Field(description="Whether it reaches the calibrated threshold; null without one.")


class Neighbours(BaseModel):
    """The nearest images of a query, the most similar first."""

    run: Literal["a", "b"]
    query: Item | None = Field(description="The query, if it is an image of a gallery.")
    neighbours: list[Neighbour]
    threshold: float | None
    model_ms: float = Field(description="Time of the network; zero if the embedding was in the index.")
    search_ms: float


class OpenSetCalibration(BaseModel):
    """Expected error rates on new classes. Intervals cover 90 % of galleries with this number of classes."""

    rule: Literal["template", "nearest"] = Field(description="Compare with the mean of a class, or its nearest image.")
    threshold: float = Field(description="A class is named if similarity - runner_up_similarity / 2 reaches this.")
    wished: float = Field(description="The requested false accept rate.")
    far: float = Field(description="False accept rate: pictures of unknown classes that are named.")
    far_interval: tuple[float, float]
    dir: float = Field(description="Detection and identification rate: pictures of enrolled classes named correctly.")
    dir_interval: tuple[float, float]
    prior: float = Field(description="The assumed probability that a picture is of an enrolled class.")
    enrolled: int
    rehearsed: int = Field(description="Classes enrolled in the calibration.")
    classes: int = Field(description="Held-out classes used for the calibration.")


class Identification(BaseModel):
    """The class of a picture, or none of the gallery's classes."""

    run: Literal["a", "b"]
    verdict: Literal["enrolled", "unsure", "none", "uncalibrated"] = Field(
        description="unsure: the nearest class is probably right, but below the threshold of the false accept rate."
    )
    who: str | None = Field(description="The class, if the verdict is enrolled.")
    probability: float | None = Field(description="The probability that the nearest class is right.")
    nearest: str
    similarity: float
    runner_up: str | None
    runner_up_similarity: float | None
    classes: int = Field(description="The number of classes of the gallery.")
    calibration: OpenSetCalibration | None
    why_not: str | None = Field(description="Why it is not calibrated.")


class Items(BaseModel):
    """A page of the gallery's images."""

    total: int
    offset: int
    items: list[Item]


class ClassCount(BaseModel):
    """A class of the gallery."""

    label: str
    images: int
    first: Item


class Classes(BaseModel):
    """A page of the classes whose names contain the requested text."""

    total: int
    offset: int
    classes: list[ClassCount]


class RankedItem(Item):
    """A neighbour of a test query."""

    similarity: float
    right: bool


class WorstQuery(BaseModel):
    """A query and its neighbours."""

    query: Item
    margin: float = Field(description="Similarity of the nearest match minus that of the nearest non-match.")
    found: list[RankedItem]


class ConfusedPair(BaseModel):
    """Two classes whose images are confused."""

    first: str
    second: str
    mistaken: int = Field(description="Queries of one class whose nearest image is of the other.")
    queries: int = Field(description="Queries of both classes.")
    query: Item = Field(description="The query of the most confident mistake.")
    found: Item
    similarity: float


class Mistakes(BaseModel):
    """The worst queries and confused classes, under the protocol of the run."""

    evaluation: bool = Field(description="Whether the queries are the run's test images; otherwise all with a label.")
    queries: int
    drawn: bool = Field(description="Whether the queries are a sample.")
    right: int = Field(description="Queries whose nearest image is of their class.")
    worst: list[WorstQuery]
    confused: list[ConfusedPair]


class Thresholds(BaseModel):
    """The pairs and queries that each threshold accepts, from the lowest threshold to the highest.

    The precision of pairs is same / (same + other), their recall same / same[0].
    """

    evaluation: bool = Field(description="As for mistakes.")
    at: list[float]
    same: list[int] = Field(description="Pairs of the same class that reach the threshold.")
    other: list[int] = Field(description="Pairs of different classes that reach the threshold.")
    queries: int
    answered: list[int] = Field(description="Queries whose nearest image reaches the threshold.")
    right: list[int] = Field(description="Answered queries whose nearest image is of their class.")
    calibrated: float | None


class GalleryMap(BaseModel):
    """A two-dimensional map of a sample of the gallery, x and y from 0 to 1."""

    method: str
    x: list[float]
    y: list[float]
    item: list[str]
    label: list[int] = Field(description="Position in names.")
    right: list[bool] = Field(description="Whether the nearest image is of the same class.")
    names: list[str]


class AddedItem(BaseModel):
    """An image that was added."""

    added: Item
    images: int = Field(description="Images in the gallery now.")


class RemovedItem(BaseModel):
    """An image that was removed."""

    removed: str
    images: int = Field(description="Images in the gallery now.")
