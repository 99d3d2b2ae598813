"""Official sizes of well-known data sets, and the differences of a copy."""

from collections.abc import Mapping

import numpy as np

from nearfar.data.tables import UNLABELLED, Table

# Images and classes of each split, under the standard protocol.
SPLIT_COUNTS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "CUB-200-2011": {"train": (5864, 100), "test": (5924, 100)},
    "Cars196": {"train": (8054, 98), "test": (8131, 98)},
    "Stanford Online Products": {"train": (59551, 11318), "test": (60502, 11316)},
    "In-Shop": {"train": (25882, 3997), "query": (14218, 3985), "gallery": (12612, 3985)},
    # The gallery excludes junk; its distractors (0000) are one class.
    "Market-1501": {"train": (12936, 751), "query": (3368, 750), "gallery": (15913, 751)},
    "MSMT17": {"train": (32621, 1041), "query": (11659, 3060), "gallery": (82161, 3060)},
    "LFW": {"test": (13233, 5749)},
    "CFP": {"test": (7000, 500)},
}
PAIR_COUNTS: Mapping[str, Mapping[str, int]] = {
    "LFW": {"LFW": 6000},
    "YTF": {"YTF": 5000},
    "CFP": {"FF": 7000, "FP": 7000},
    "IJB-B": {"IJB-B": 8010270},
    "IJB-C": {"IJB-C": 15658489},
}


def differences(table: Table) -> list[str]:
    """A sentence for each count that differs from the official one, if these are known."""
    notes = []
    for split, official in SPLIT_COUNTS.get(table.name, {}).items():
        labels = table.split(split).labels if split in table.split_names else np.zeros(0, np.int64)
        actual = len(labels), len(np.setdiff1d(labels, UNLABELLED))
        for unit, count, expected in zip(("images", "classes"), actual, official, strict=True):
            if count != expected:
                notes.append(
                    f"{split} has {count:,} {unit}, the official {table.name} {expected:,} ({count - expected:+,})"
                )
    for name, expected in PAIR_COUNTS.get(table.name, {}).items():
        count = len(table.pairs[name]) if name in table.pairs else 0
        if count != expected:
            notes.append(f"the list {name} has {count:,} pairs, the official one {expected:,} ({count - expected:+,})")
    return notes
