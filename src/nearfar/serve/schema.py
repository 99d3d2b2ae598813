"""What the API answers."""

from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import BaseModel, Field

RunKey = Annotated[Literal["a", "b"], Path(description="a: the first run of the command line; b: the second.")]
ItemKey = Annotated[str, Path(pattern="^[0-9a-f]{16}$", description="Of an image of the gallery.")]
Count = Annotated[int, Query(ge=1, le=100, description="How many neighbours.")]
Side = Annotated[Literal["96", "192", "384"], Query(description="Pixels of the longer side, at most.")]
Rate = Annotated[
    Literal["0.01", "0.05", "0.1", "0.2"],
    Query(description="The share of pictures of things that are not enrolled that may be taken for one."),
]
LABEL_LENGTH = 200


class Problem(BaseModel):
    """What went wrong, and what to do."""

    detail: str


class Metrics(BaseModel):
    """What the run measured on its test classes."""

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
    threshold: float | None = Field(description="From which similarity on two images count as the same.")
    threshold_note: str | None = Field(description="What it was measured to be worth on test classes.")
    metrics: Metrics


class UploadLimits(BaseModel):
    """What may be sent."""

    bytes: int
    pixels: int
    types: list[str]


class State(BaseModel):
    """What is served, and what is allowed."""

    version: str
    runs: list[RunState]
    limits: UploadLimits
    writable: bool = Field(description="Whether images can be added and taken away, with the token.")


class Item(BaseModel):
    """An image of the gallery."""

    item: str
    label: str | None
    name: str = Field(description="The name of its file, without where it is; or its row.")


class Neighbour(Item):
    """An image that was found."""

    similarity: float
    match: bool | None = Field(description="Whether it reaches the calibrated threshold; none if there is none.")


class Found(BaseModel):
    """The nearest images of a query, the most similar first."""

    run: Literal["a", "b"]
    query: Item | None = Field(description="Where it is an image of a gallery.")
    neighbours: list[Neighbour]
    threshold: float | None
    model_ms: float = Field(description="That the network took; zero where the embedding was there.")
    search_ms: float


class Promise(BaseModel):
    """What is expected of new classes; intervals hold for 90 % of galleries of so many classes."""

    rule: Literal["template", "nearest"] = Field(description="Classes are the mean of their images, or the nearest.")
    threshold: float = Field(description="similarity - runner_up_similarity / 2, from which on a class is named.")
    wished: float = Field(description="The false accept rate that was asked for.")
    far: float = Field(description="Pictures of other things that are taken for an enrolled class.")
    far_interval: tuple[float, float]
    dir: float = Field(description="Pictures of enrolled classes that are named, and rightly.")
    dir_interval: tuple[float, float]
    prior: float = Field(description="How likely a picture is of an enrolled class, for the probability.")
    enrolled: int
    rehearsed: int = Field(description="Classes that were enrolled where it was found out.")
    classes: int = Field(description="Held-out classes that it rests on.")


class Identified(BaseModel):
    """Which class of the gallery a picture is of, or none."""

    run: Literal["a", "b"]
    verdict: Literal["enrolled", "unsure", "none", "uncalibrated"] = Field(
        description="unsure: the nearest is more probable than not, but too little for the false accept rate."
    )
    who: str | None = Field(description="The class, if the verdict is enrolled.")
    probability: float | None = Field(description="That the nearest class is right.")
    nearest: str
    similarity: float
    runner_up: str | None
    runner_up_similarity: float | None
    classes: int = Field(description="Of the gallery.")
    calibration: Promise | None
    why_not: str | None = Field(description="Why it is not calibrated.")


class Items(BaseModel):
    """A part of the gallery."""

    total: int
    offset: int
    items: list[Item]


class ClassCount(BaseModel):
    """A class of the gallery."""

    label: str
    images: int
    first: Item


class Classes(BaseModel):
    """Classes whose names contain what was asked for."""

    total: int
    offset: int
    classes: list[ClassCount]


class Seen(Item):
    """An image that a query of the evaluation found."""

    similarity: float
    right: bool


class WorstQuery(BaseModel):
    """A query and what it found."""

    query: Item
    margin: float = Field(description="Similarity of the nearest match less that of the nearest other image.")
    found: list[Seen]


class ConfusedPair(BaseModel):
    """Two classes taken for each other."""

    first: str
    second: str
    mistaken: int = Field(description="Queries of either whose nearest image is of the other.")
    queries: int = Field(description="Of either.")
    query: Item = Field(description="Of the most confident mistake.")
    found: Item
    similarity: float


class Mistakes(BaseModel):
    """Images searched for among all others, as the run is measured."""

    evaluation: bool = Field(description="Whether these are the run's test images; else all that have a label.")
    queries: int
    drawn: bool = Field(description="Whether the queries are a sample.")
    right: int = Field(description="Queries whose nearest image is of their class.")
    worst: list[WorstQuery]
    confused: list[ConfusedPair]


class Thresholds(BaseModel):
    """What thresholds accept, from the lowest to the highest.

    Of pairs, precision is same / (same + other), and recall same / same[0].
    """

    evaluation: bool = Field(description="As of the mistakes.")
    at: list[float]
    same: list[int] = Field(description="Pairs of one class that are at least so similar.")
    other: list[int] = Field(description="Pairs of two classes that are.")
    queries: int
    answered: list[int] = Field(description="Queries whose nearest image is at least so similar.")
    right: list[int] = Field(description="Those of them whose nearest image is of their class.")
    calibrated: float | None


class Map(BaseModel):
    """A flat map of a sample of the gallery, x and y from 0 to 1."""

    method: str
    x: list[float]
    y: list[float]
    item: list[str]
    label: list[int] = Field(description="Place in names.")
    right: list[bool] = Field(description="Whether the nearest image is of the same class.")
    names: list[str]


class Added(BaseModel):
    """An image that was added."""

    added: Item
    images: int = Field(description="In the gallery now.")


class Removed(BaseModel):
    """An image that was taken away."""

    removed: str
    images: int = Field(description="In the gallery now.")
