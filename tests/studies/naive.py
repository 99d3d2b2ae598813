"""What is checked against: plain loops."""

from typing import Any

import numpy as np


def recall_at_1(similarities: Any, labels: Any) -> float:
    """The share of rows whose most similar other rows, all of them where several are equal, have their label."""
    hits = 0
    for row in range(len(labels)):
        others = [other for other in range(len(labels)) if other != row]
        best = max(similarities[row][other] for other in others)
        hits += all(labels[other] == labels[row] for other in others if similarities[row][other] >= best - 1e-6)
    return hits / len(labels)


def map_at_r(similarities: Any, labels: Any) -> float:
    """1/R Σ of the precisions at the hits among the R first, where R rows have the query's label; what is as similar as
    a hit, but of another label, comes before it.
    """
    values = []
    for row in range(len(labels)):
        others = [other for other in range(len(labels)) if other != row]
        order = sorted(others, key=lambda o: (-round(float(similarities[row][o]), 6), labels[o] == labels[row]))
        total = sum(labels[other] == labels[row] for other in others)
        hits, precisions = 0, 0.0
        for place, other in enumerate(order[:total], 1):
            if labels[other] == labels[row]:
                hits += 1
                precisions += hits / place
        values.append(precisions / total)
    return float(np.mean(values))


def cosines(embeddings: Any) -> Any:
    x = np.asarray(embeddings, np.float64)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T
