"""Evaluation metrics, exact and in bounded memory.

embeddings, labels ──► inputs.py ──► protocols.py        matches and ignored items of each query
                                         │
           vectors.py, search.py ◄───────┤               products in tiles, none of which is kept
           counting.py, ties.py          │               negatives before each match; ties count against the model
                                         ▼
                                     metrics.py          functions of the ranks: recall@k, map@r, ndcg@k, …
                                         │
                                     retrieval.py        retrieval_metrics, rank_metrics
                                     class_means.py      intervals and comparisons for other classes and other runs
                                     student.py

distributed.py                   retrieval_metrics by several processes, which share the queries or the gallery
hamming.py, approximate.py       binary codes; approximate FAISS indexes, by name
multi_query.py, reranking.py,    re-identification: pooled queries, k-reciprocal re-ranking, query expansion, and
neighbours.py                    lists of the nearest
clustering.py                    NMI, AMI
verification.py, templates.py,   faces: pairs, templates, identification, thresholds
identification.py, calibration.py
class_calibration.py,            a threshold for unseen classes, with prediction intervals of its rates
class_pairs.py,
class_intervals.py
enrolment.py, trials.py,         open-set identification among enrolled classes, calibrated by trials on held-out
open_set.py                      classes
diagnostics.py, spectrum.py      geometry of an embedding

>>> import torch
>>> from nearfar.evaluation import retrieval_metrics
>>> embeddings, labels = torch.eye(4).repeat(3, 1), torch.arange(4).repeat(3)
>>> retrieval_metrics(embeddings, labels)["recall@1"]
1.0
"""

from nearfar.evaluation.calibration import Threshold, calibrate
from nearfar.evaluation.class_calibration import (
    Calibration,
    Measured,
    NotCalibratedError,
    calibrate_on_classes,
    measured_at,
)
from nearfar.evaluation.class_means import Difference, compare
from nearfar.evaluation.clustering import clustering_metrics
from nearfar.evaluation.diagnostics import Diagnosis, diagnose
from nearfar.evaluation.distributed import distributed_retrieval_metrics
from nearfar.evaluation.hamming import pack_bits
from nearfar.evaluation.identification import identification_metrics
from nearfar.evaluation.open_set import OpenSet, calibrate_open_set
from nearfar.evaluation.reranking import KReciprocal, augment_database, expand_queries
from nearfar.evaluation.retrieval import rank_metrics, retrieval_metrics
from nearfar.evaluation.templates import Templates, pool_templates
from nearfar.evaluation.verification import Roc, fold_accuracies, pair_scores, roc_curve, verification_metrics

__all__ = [
    "Calibration",
    "Diagnosis",
    "Difference",
    "KReciprocal",
    "Measured",
    "NotCalibratedError",
    "OpenSet",
    "Roc",
    "Templates",
    "Threshold",
    "augment_database",
    "calibrate",
    "calibrate_on_classes",
    "calibrate_open_set",
    "clustering_metrics",
    "compare",
    "diagnose",
    "distributed_retrieval_metrics",
    "expand_queries",
    "fold_accuracies",
    "identification_metrics",
    "measured_at",
    "pack_bits",
    "pair_scores",
    "pool_templates",
    "rank_metrics",
    "retrieval_metrics",
    "roc_curve",
    "verification_metrics",
]
