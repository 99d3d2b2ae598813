"""A loss is a setting of one formula; this is the setting.

    u_rc = f_p(s_rc)  for positive pairs        v_rc = f_n(s_rc)  for negative pairs
    P_r  = A_p { u_rc }                          N_r  = A_n { v_rc }
    joint:  l_r = act(P_r + N_r)                 split:  l_r = k_p a act(P_r) + k_n b act(N_r)
    each:   l_r = mean over positives of act(u_rc + N_r)        negatives:  l_r = act(N_r)

and the loss is an average of l_r over rows. A set without pairs adds nothing: it leaves a joint loss, one of each
positive and one of negatives zero, and of a split loss the other side.

Every executor computes a spec alike, or `check` refuses it. (Specs are named tuples, since one is made every step and a
frozen dataclass takes six times as long.)
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

from nearfar.errors import InputError
from nearfar.losses.engine.maps import Column, Hinge, Linear, Map, Row, ShiftedHinge, placeholders
from nearfar.losses.engine.pools import Pool
from nearfar.losses.engine.reductions import PICKS, Gather

Average = Literal["both", "positive", "pairs", "all", "sides", "active"]
Combine = Literal["joint", "split", "each", "negatives"]
Act = Literal["softplus", "relu", "identity"]
Anchors = Literal["samples", "proxies"]


class LossSpec(NamedTuple):
    """One loss of the formula.

    Args:
        positive, negative: the maps f_p and f_n. f_p may take numbers of the row and of the column, f_n of the row.
        gather: A_p and A_n. "max" is the largest term, that of the hardest pair, and the first of equal ones; "min" is
            the smallest, and "softmin" its smooth form, −log Σ exp(−u). combine="each" has no A_p.
        combine: "joint", "split", "each" or "negatives", see above.
        act: log(1 + e^x), max(x, 0) or x.
        side_scale: a and b of a split loss.
        scale: a factor of every l_r.
        others: whether A_n runs over the positives too (SupCon's denominator).
        mining: keep negatives with s > min s_p - mining and positives with s < max s_n + mining (Multi-Similarity);
            None keeps all. The rows that an average is over do not depend on it.
        average: what the mean is over: the rows that have "both" a positive and a negative; the rows that have a
            "positive"; the rows that have both, counted once per positive ("pairs"); "all" rows; all rows, but the
            positive terms over the rows that have one ("sides", Proxy-Anchor); or the pairs whose term is not zero,
            positives and negatives apart ("active").
        anchors: whether the rows are the "samples" or the class "proxies"; the columns are the other of the two.
        normalize: whether rows and columns are divided by their norms; if both are, s is a cosine.
        pool: where K consecutive columns stand for a class, how their similarities become one.
        smoothing: of the labels of a joint loss of log-sum-exps: this part of the target's probability is shared by all
            columns. With K positives and L negatives it adds
            -smoothing (Σ u (1/K - 1/(K + L)) + Σ v / (K + L)).
    """

    positive: Map
    negative: Map
    gather: tuple[Gather, Gather] = ("lse", "lse")
    combine: Combine = "joint"
    act: Act = "softplus"
    side_scale: tuple[float, float] = (1.0, 1.0)
    scale: float = 1.0
    others: bool = False
    mining: float | None = None
    average: Average = "both"
    anchors: Anchors = "samples"
    normalize: tuple[bool, bool] = (True, True)
    pool: Pool | None = None
    smoothing: float = 0.0


def over_negatives(negative: Map, act: Act, normalize: tuple[bool, bool] = (True, True)) -> LossSpec:
    """l_r = act(log Σ_n exp f_n(s_n)) over a row's negatives, for losses that combine several rows."""
    return LossSpec(Linear(), negative, combine="negatives", act=act, average="all", normalize=normalize)


def plain_sums(positive: Map, negative: Map, **settings: Any) -> LossSpec:
    """l_r = a Σ f_p(s_p) + b Σ f_n(s_n)."""
    return LossSpec(positive, negative, gather=("sum", "sum"), combine="split", act="identity", **settings)


class StripSpec(NamedTuple):
    """A row-local loss outside the formula: a differentiable function of a strip of similarities.

    Args:
        function: `function(s, positive, negative, *parameters)` returns the losses (b,) of b rows, from their
            similarities (b, M) to all columns and the boolean masks of their pairs. It must treat every row by itself.
            Parameters have an entry a row (b,). Where the rows are proxies, the log weights (M,) of the samples follow.
            For average "sides" it returns (positive terms, negative terms), for "active" (sums, numbers of active
            terms).
        closed: the function returns, as its last value, a list of slopes: of the sum of its losses by the similarities
            (b, M), and of each loss by each parameter (b,); or None if it knows that all are zero. Autograd then does
            nothing.
        average, anchors, normalize: as in `LossSpec`.
        vectors_per_class: K consecutive vectors stand for every class: the masks have one row or column a class where
            `s` has K.
    """

    function: Callable[..., Any]
    average: Average = "both"
    normalize: tuple[bool, bool] = (True, True)
    anchors: Anchors = "samples"
    vectors_per_class: int = 1
    closed: bool = False


CHOICES = {"combine": Combine, "act": Act, "average": Average, "anchors": Anchors}


def check(spec: LossSpec | StripSpec, rows: int, columns: int, *, one_set: bool, bias: bool) -> None:
    """Refuse what has no meaning, before anything is computed.

    Args:
        rows, columns: how many numbers of the rows and of the columns there are.
        one_set: the columns are the rows.
        bias: a bias is added to the similarities.
    """
    for reason in refusals(spec, rows, columns) if isinstance(spec, LossSpec) else ():
        raise InputError(f"LossSpec: {reason}")
    if one_set and spec.normalize[0] != spec.normalize[1]:
        raise InputError("rows compared with themselves have one normalisation: set both alike, or give columns")
    if one_set and bias:
        raise InputError("a bias belongs to columns that are not the rows themselves: give columns")
    if isinstance(spec, LossSpec) and spec.pool is not None and (one_set or bias):
        raise InputError("a pool is over class vectors: give columns of their own, without a bias")
    if isinstance(spec, LossSpec) and bias and _of_cosines(spec):
        raise InputError("a bias is added to similarities, and this map is a function of the cosine: leave it out")


def innermost(function: Map) -> Map:
    """The map itself, or what a hinge is put on."""
    return function.inner if isinstance(function, Hinge) else function


def _of_cosines(spec: LossSpec) -> list[str]:
    """The names of the maps that have a meaning only for cosines."""
    functions = map(innermost, (spec.positive, spec.negative))
    return [type(function).__name__ for function in functions if function.of_cosines]


def refusals(spec: LossSpec, rows: int = 0, columns: int = 0) -> list[str]:
    """The reasons why this spec has no meaning, each with what there is instead; the loss is evaluated with this many
    numbers of the rows and of the columns.
    """
    both = spec.positive, spec.negative
    wrong = [
        f"{name} must be one of {', '.join(map(repr, get_args(kind)))}, not {getattr(spec, name)!r}"
        for name, kind in CHOICES.items()
        if getattr(spec, name) not in get_args(kind)
    ]
    if len(spec.gather) != 2 or any(how not in get_args(Gather) for how in spec.gather):
        wrong.append(f"gather must be two of {', '.join(map(repr, get_args(Gather)))}, not {spec.gather!r}")
    if spec.average in ("sides", "active") and spec.combine != "split":
        wrong.append(
            f'average="{spec.average}" weighs positive and negative terms apart, which only combine="split" keeps '
            'apart: take average="both" or "all"'
        )
    elif spec.average == "active" and (spec.gather != ("sum", "sum") or spec.act != "identity"):
        wrong.append('average="active" is over single terms: it needs gather=("sum", "sum") and act="identity"')
    if spec.side_scale != (1.0, 1.0) and spec.combine != "split":
        wrong.append('side_scale multiplies the sides of combine="split": take scale for one factor of the whole loss')
    if not 0 <= spec.smoothing < 1:
        wrong.append(f"smoothing must be at least 0 and below 1, not {spec.smoothing}")
    if spec.smoothing and (spec.combine != "joint" or spec.gather != ("lse", "lse") or spec.others):
        wrong.append(
            'smoothing is that of a cross-entropy: it needs combine="joint", gather=("lse", "lse") and others=False'
        )
    if spec.smoothing and spec.mining is not None:
        wrong.append("smoothing shares probability among all columns, and mining leaves some out: choose one of them")
    if spec.smoothing and not isinstance(spec.negative, Linear):
        wrong.append("smoothing needs logits that are linear in the similarities: take Linear as the negative map")
    if any(isinstance(number, Column) for number in placeholders(spec.negative).values()):
        wrong.append("the negative map takes numbers of rows only: multiply a number of the columns into their vectors")
    if any(isinstance(function, Hinge) and placeholders(function.inner) for function in both):
        wrong.append("the map within a Hinge takes constants only: write a map with its own slopes")
    if any(isinstance(f, ShiftedHinge) and how in PICKS for f, how in zip(both, spec.gather, strict=False)):
        wrong.append("a ShiftedHinge is 0 for many pairs, of which max and min would pick any: take another reduction")
    for function in both:
        for name, number in placeholders(function).items():
            kind, given = ("row", rows) if isinstance(number, Row) else ("column", columns)
            if number.index >= given:
                wrong.append(
                    f"{type(function).__name__}.{name} is number {number.index} of the {kind}, but the loss is "
                    f"evaluated with {given} of them: return it from {kind}_parameters"
                )
    angular = _of_cosines(spec)
    if angular and spec.normalize != (True, True):
        wrong.append(f"{angular[0]} is a function of the cosine: it needs normalize=(True, True)")
    if spec.pool is not None and not spec.normalize[1]:
        wrong.append("a pool compares cosines: it needs normalize=(..., True)")
    if spec.pool is not None and spec.anchors == "proxies":
        wrong.append('a pool is over columns, which anchors="proxies" makes rows: write a StripSpec')
    return wrong
