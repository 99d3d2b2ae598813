"""From files to batches.

open(path)   ->  Table           recognise the layout; one row per image: source, label, split, ...
Table        ->  split, select, folds, summary
Source       ->  load_image      eight-bit RGB the right way up, or BrokenImageError
Source       ->  EvalTransform, TrainTransform, or any callable of a Pillow image
labels       ->  PKSampler, ...  which rows make a batch, on which rank, from where in the epoch
all of these ->  Loader          batches from worker processes; broken images skipped, counted and listed
images       ->  FeatureCache    what a frozen network makes of them, computed once, on disk
"""

from nearfar.data.columns import Encoded, Files, Images, Pixels, Spans
from nearfar.data.distributed import Dealt
from nearfar.data.embedded import glyphs
from nearfar.data.features import FeatureCache, Features
from nearfar.data.lists import LayoutError
from nearfar.data.loading import Batch, Faults, Loader
from nearfar.data.opening import DifferentCountsWarning, open  # noqa: A004
from nearfar.data.samplers import BalancedSampler, BatchSampler, HierarchicalSampler, PKSampler, PlainSampler
from nearfar.data.tables import SPLITS, Pairs, Table
from nearfar.data.transforms import SeededView, TrainTransform, transform_from_dict
from nearfar.imaging import (
    BrokenImageError,
    EvalTransform,
    Source,
    Span,
    TooManyBrokenImagesError,
    identity,
    load_image,
)

__all__ = [
    "SPLITS",
    "BalancedSampler",
    "Batch",
    "BatchSampler",
    "BrokenImageError",
    "Dealt",
    "DifferentCountsWarning",
    "Encoded",
    "EvalTransform",
    "Faults",
    "FeatureCache",
    "Features",
    "Files",
    "HierarchicalSampler",
    "Images",
    "LayoutError",
    "Loader",
    "PKSampler",
    "Pairs",
    "Pixels",
    "PlainSampler",
    "SeededView",
    "Source",
    "Span",
    "Spans",
    "Table",
    "TooManyBrokenImagesError",
    "TrainTransform",
    "glyphs",
    "identity",
    "load_image",
    "open",
    "transform_from_dict",
]
