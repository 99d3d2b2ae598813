"""The losses that are measured: every registered one, configured so that all implementations compute the same."""

from dataclasses import dataclass, field
from typing import Any

from benchmarks.cases import Case
from nearfar.losses import Loss, LossInfo, list_losses

# Where pytorch-metric-learning has another form than our default, ours is set to its form. The time is the same.
ALIKE: dict[str, tuple[dict[str, Any], str]] = {
    "ContrastiveLoss": ({"power": 1}, "hinges not squared"),
    "LargeMarginSoftmaxLoss": ({"base": 0.0, "lambda_min": 0.0}, "no annealing"),
    "NPairsLoss": ({"l2_weight": 0.0, "pairs": "one_per_class"}, "one pair per class, no norm penalty"),
    "SphereFaceLoss": ({"base": 0.0, "lambda_min": 0.0}, "no annealing"),
    "TripletMarginLoss": ({"mining": "batch_hard"}, "batch-hard"),
}
# Further settings of a loss, under a label of their own.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "MultiSimilarityLoss, no mining": ("MultiSimilarityLoss", {"epsilon": None}),
    "NPairsLoss, all pairs": ("NPairsLoss", {"l2_weight": 0.0}),
    "TripletMarginLoss, all triplets": ("TripletMarginLoss", {"mining": "all"}),
    "TripletMarginLoss, semi-hard": ("TripletMarginLoss", {"mining": "semihard"}),
}


@dataclass(frozen=True)
class Setting:
    """A loss with its arguments, under the label that the results have."""

    label: str
    info: LossInfo
    arguments: dict[str, Any] = field(default_factory=dict)
    note: str = ""

    def fits(self, case: Case) -> bool:
        level = "pair" if self.info.level in ("pair", "towers") else "class"
        return self.info.level == "pair or class" or level == case.level

    def make(self, case: Case, **options: Any) -> Loss:
        sizes = {"num_classes": case.columns, "embedding_size": case.dimension} if case.level == "class" else {}
        loss: Loss = self.info.loss(**sizes, **self.arguments, **options)
        return loss

    def vectors_per_class(self, case: Case) -> int:
        """1 for most; the limit has as many columns as the loss compares with."""
        return self.make(Case(case.level, case.rows, 2, case.dimension)).vectors_per_class


def settings() -> dict[str, Setting]:
    """Every registered loss and every variant, by label."""
    infos = {info.name: info for info in list_losses()}
    found = [Setting(name, info, *ALIKE.get(name, ())) for name, info in infos.items()]
    found += [Setting(label, infos[name], arguments) for label, (name, arguments) in VARIANTS.items()]
    return {setting.label: setting for setting in sorted(found, key=lambda setting: setting.label)}
