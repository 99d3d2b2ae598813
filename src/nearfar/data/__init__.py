"""Data sets, transforms, samplers and loaders.

open(path)    reads a data set of any known layout into a Table with one row per image
Table         sources, labels and splits of the images; split, select, folds, summary
load_image    decodes a source to upright 8-bit RGB, or raises BrokenImageError
transforms    EvalTransform, TrainTransform, or any callable of a Pillow image
samplers      PKSampler, ...: the rows of each batch on each rank; they resume at any batch
Loader        batches from worker processes; broken images are skipped, counted and listed
FeatureCache  features of a frozen network, computed once and stored on disk
"""

from nearfar.data.columns import Encoded, Files, Images, Pixels, Spans
from nearfar.data.dealing import Dealt
from nearfar.data.embedded import glyphs
from nearfar.data.features import FeatureCache, Features
from nearfar.data.loading import Batch, Faults, Loader
from nearfar.data.opening import DifferentCountsWarning, open  # noqa: A004
from nearfar.data.parsing import LayoutError
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
