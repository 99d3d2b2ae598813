"""Samplers that are stopped, resumed, broken off and dealt to other numbers of ranks, in any order: what they give is
what an uninterrupted epoch gives, every part of it once. `NEARFAR_LONG=1` tries hundreds of orders.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nearfar.data import BalancedSampler, BatchSampler, Dealt, HierarchicalSampler, PKSampler, PlainSampler

LONG = bool(os.environ.get("NEARFAR_LONG"))
K = 2
KINDS = ("plain", "pk", "balanced", "hierarchical")
Batch = tuple[tuple[int, ...], ...]  # the rows of every rank


class SamplerMachine(RuleBasedStateMachine):
    @initialize(
        kind=st.sampled_from(KINDS),
        sizes=st.lists(st.integers(1, 7), min_size=8, max_size=14),
        began=st.integers(1, 3),
        seed=st.integers(0, 3),
    )
    def begin(self, kind: str, sizes: list[int], began: int, seed: int) -> None:
        self.kind, self.began, self.seed = kind, began, seed
        labels = np.repeat(np.arange(len(sizes)) * 2 + 1, sizes)
        self.labels = np.random.default_rng(0).permutation(np.concatenate([labels, [-1, -1]]))
        self.length = len(self._original(0))
        self.epoch, self.position = 0, 0  # of what was given
        self.given: list[Batch] = []  # of this epoch
        self.broken_off = False
        self._put_on(began)

    def _original(self, rank: int, seed: int | None = None) -> BatchSampler:
        """As the run began."""
        where = {"seed": self.seed if seed is None else seed, "rank": rank, "world_size": self.began}
        if self.kind == "plain":
            return PlainSampler(len(self.labels), 4, drop_last=len(self.labels) % 2 == 0, **where)
        if self.kind == "pk":
            return PKSampler(self.labels, 2, K, **where)
        if self.kind == "balanced":
            return BalancedSampler(self.labels, 4, **where)
        return HierarchicalSampler(self.labels, self.labels % 8, 1, 2, K, **where)

    def _put_on(self, ranks: int) -> None:
        """Fresh samplers, as the processes of a new start have them."""
        self.ranks = ranks
        if ranks == self.began:
            self.samplers = [self._original(rank) for rank in range(ranks)]
        else:
            self.samplers = [Dealt(self._original(0), rank, ranks) for rank in range(ranks)]
        self.iterators: list[Iterator[list[int]]] | None = None
        self.broken_off = False

    def _expected(self, epoch: int) -> list[Batch]:
        """Of an epoch that nothing happens to, on as many ranks as the run began with."""
        samplers = [self._original(rank) for rank in range(self.began)]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        return [tuple(map(tuple, ranks)) for ranks in zip(*samplers, strict=True)]

    # What happens

    @rule(count=st.integers(1, 6))
    def go_on(self, count: int) -> None:
        """All ranks take batches; the epoch ends on all of them, or on none."""
        for _ in range(count):
            if self.iterators is None:
                self.iterators = [iter(sampler) for sampler in self.samplers]
                if self.broken_off:
                    self.position, self.given, self.broken_off = 0, [], False
            parts = [next(iterator, None) for iterator in self.iterators]
            if None in parts:
                assert parts == [None] * self.ranks and self.position == self.length
                self._end_of_epoch()
                continue
            batch = tuple(tuple(part) for part in parts if part is not None)
            expected = self._expected(self.epoch)[self.position]
            assert [row for part in batch for row in part] == [row for part in expected for row in part]
            assert self.ranks != self.began or batch == expected
            self.given.append(expected)
            self.position += 1

    def _end_of_epoch(self) -> None:
        assert len(self.given) == self.length
        self.check_coverage()
        self.epoch, self.position, self.given, self.iterators = self.epoch + 1, 0, [], None

    @rule()
    def break_off(self) -> None:
        """After an iteration that was not ended, the next begins the same epoch again; a state says how far it was."""
        if self.iterators is not None:
            for iterator in self.iterators:
                iterator.close()  # type: ignore[attr-defined]
            self.iterators, self.broken_off = None, True

    @rule(ranks=st.integers(1, 4), kept_by=st.integers(0, 3))
    def stop_and_resume(self, ranks: int, kept_by: int) -> None:
        """From the state of any rank, on any number of them, as often as one likes."""
        short = min(sum(map(len, batch)) for epoch in (self.epoch, self.epoch + 1) for batch in self._expected(epoch))
        if short // (K if self.kind in ("pk", "hierarchical") else 1) < ranks:
            return  # a batch too short for so many is refused
        state = json.loads(json.dumps(self.samplers[kept_by % self.ranks].state_dict()))
        if self.position == self.length:  # the end of an epoch is the beginning of the next
            self._end_of_epoch()
        self._put_on(ranks)
        for sampler in self.samplers:
            sampler.load_state_dict(state)
        assert (state["epoch"], state["position"]) == (self.epoch, self.position)

    @rule(epoch=st.integers(0, 5))
    def another_epoch(self, epoch: int) -> None:
        for sampler in self.samplers:
            sampler.set_epoch(epoch)
        self.epoch, self.position, self.given, self.iterators, self.broken_off = epoch, 0, [], None, False

    @rule()
    def refuse_other_data(self) -> None:
        state = self.samplers[0].state_dict()
        with pytest.raises(ValueError, match=f"the state has seed {self.seed}, but this sampler has {self.seed + 1}"):
            self._original(0, self.seed + 1).load_state_dict(state)
        with pytest.raises(ValueError, match="the state has length"):
            self.samplers[0].load_state_dict({**state, "length": self.length + 1})

    # What must be so

    @invariant()
    @precondition(lambda self: hasattr(self, "samplers"))
    def all_ranks_have_the_same_state(self) -> None:
        states = [sampler.state_dict() for sampler in self.samplers]
        assert all(state == states[0] for state in states)
        ended = self.position == self.length
        epoch, position = (self.epoch + 1, 0) if ended else (self.epoch, self.position)
        assert states[0] == {"seed": self.seed, "epoch": epoch, "position": position, "length": self.length}

    def check_coverage(self) -> None:
        """By the rules of each kind, counted here."""
        rows = Counter(row for batch in self.given for part in batch for row in part)
        if self.kind == "plain":
            left_out = len(self.labels) - len(rows)
            assert set(rows.values()) <= {1} and left_out < 4 * self.began
            return
        assert all(self.labels[row] != -1 for row in rows)
        if self.kind == "balanced":
            drawn = Counter(int(self.labels[row]) for row in rows.elements())
            counts = [drawn[label] for label in set(self.labels.tolist()) - {-1}]
            assert max(counts) - min(counts) <= 1
            return
        for batch in self.given:
            classes = [{int(self.labels[row]) for row in part} for part in batch]
            assert len(set().union(*classes)) == sum(map(len, classes))  # no class on two ranks
            counts = Counter(int(self.labels[row]) for part in batch for row in part)
            assert set(counts.values()) == {K}


TestSamplers = SamplerMachine.TestCase
TestSamplers.settings = settings(
    max_examples=500 if LONG else 25,
    stateful_step_count=40 if LONG else 15,
    derandomize=not LONG,
    database=None,
)
