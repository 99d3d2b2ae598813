"""A loss is a setting of one formula; this is the setting.

    u_rc = f_p(s_rc)  for positive pairs        v_rc = f_n(s_rc)  for negative pairs
    P_r  = A_p { u_rc }                          N_r  = A_n { v_rc }
    joint:  l_r = act(P_r + N_r)                 split:  l_r = k_p a act(P_r) + k_n b act(N_r)
    each:   l_r = mean over positives of act(u_rc + N_r)        negatives:  l_r = act(N_r)

and the loss is an average of l_r over rows. (Specs are named tuples: one is made every step, and a frozen dataclass
takes six times as long.)
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from nearfar.losses.maps import Linear, Map
from nearfar.losses.pools import Pool

Average = Literal["both", "positive", "pairs", "all", "sides", "active"]
Gather = Literal["lse", "softmin", "sum", "mean", "max", "min"]


class LossSpec(NamedTuple):
    """One loss of the formula.

    Args:
        positive, negative: the maps f_p and f_n.
        gather: A_p and A_n. "max" keeps the hardest pair: the least similar positive, the most similar negative;
            "min", for positives, the most similar, and "softmin" its smooth form, −log Σ exp(−u).
        combine: "joint", "split", "each" or "negatives", see above.
        act: log(1 + e^x), max(x, 0) or x.
        side_scale: a and b of a split loss.
        scale: a factor of all l_r.
        others: A_n runs over the positives too (SupCon's denominator).
        mining: keep negatives with s > min s_p - mining and positives with s < max s_n + mining (Multi-Similarity);
            None keeps all.
        average: what the mean is over: the rows that have "both" a positive and a negative; the rows that have a
            "positive"; those with both, counted once per positive ("pairs"); "all" rows; all rows, the positive terms
            over those that have one ("sides",
            Proxy-Anchor); or the pairs whose term is not zero, positives and negatives apart ("active").
        anchors: whether the rows are the "samples" or the class "proxies"; the columns are what is left.
        normalize: whether rows and columns are divided by their norms, so that s is a cosine; else the norm stays.
        border: f_n takes a number of every row besides, (N,).
        pool: where K columns, one after the other, stand for a class: how their similarities become one.
    """

    positive: Map
    negative: Map
    gather: tuple[Gather, Gather] = ("lse", "lse")
    combine: Literal["joint", "split", "each", "negatives"] = "joint"
    act: Literal["softplus", "relu", "identity"] = "softplus"
    side_scale: tuple[float, float] = (1.0, 1.0)
    scale: float = 1.0
    others: bool = False
    mining: float | None = None
    average: Average = "both"
    anchors: Literal["samples", "proxies"] = "samples"
    normalize: tuple[bool, bool] = (True, True)
    pool: Pool | None = None
    border: bool = False


def over_negatives(
    negative: Map, act: Literal["softplus", "identity"], normalize: tuple[bool, bool] = (True, True)
) -> LossSpec:
    """l_r = act(log Σ_n exp f_n(s_n)): a row's negatives alone, for losses that put more than rows together."""
    return LossSpec(Linear(), negative, combine="negatives", act=act, average="all", normalize=normalize)


class StripSpec(NamedTuple):
    """A row-local loss outside the formula: a differentiable function of a strip of similarities.

    Args:
        function: `function(s, positive, negative, *parameters)` gives the losses (b,) of b rows, from their
            similarities (b, M) to all columns and the boolean masks of their pairs. It must treat every row by itself.
            Parameters have an entry a row (b,). Where the rows are proxies, the log weights (M,) of the samples follow.
            For average "sides" it gives (positive terms, negative terms), for "active" (sums, numbers of active terms).
        closed: the function gives, last, a list of the slopes: of the sum of its losses by the similarities (b, M), and
            of each loss by each parameter (b,); or None, if it knows that all are zero. Nothing of it is
            differentiated then.
        average, anchors, normalize: as in `LossSpec`.
        vectors_per_class: K vectors stand for every class, one after the other: the masks have one row or column a
            class where `s` has K.
    """

    function: Callable[..., Any]
    average: Average = "both"
    normalize: tuple[bool, bool] = (True, True)
    anchors: Literal["samples", "proxies"] = "samples"
    vectors_per_class: int = 1
    closed: bool = False
