"""Breadth first through all states, then backwards from the quiet ones."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.faults.model.decode_rules import decode_moves
from tests.faults.model.invariants import broken, unclean
from tests.faults.model.prefill_rules import prefill_moves
from tests.faults.model.router_rules import router_moves
from tests.faults.model.scope import Scope
from tests.faults.model.state import State, canonical, first_state
from tests.faults.model.steps import Kind, Step
from tests.faults.model.time_rules import fault_moves, time_moves


@dataclass
class Finding:
    """What is wrong, and a shortest way there."""

    what: str
    steps: list[Step] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{number:3} {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join([f"{self.what}  (! a fault, ~ the client or other traffic)", *lines])


@dataclass
class Found:
    """The outcome of a search. ``is_whole``: every state was looked at."""

    num_states: int
    num_transitions: int
    depth: int
    seconds: float
    num_quiet: int
    is_whole: bool
    finding: Finding | None = None

    def __str__(self) -> str:
        whole = "all states" if self.is_whole else "stopped early"
        counts = f"{self.num_states} states, {self.num_transitions} transitions, depth {self.depth}"
        return f"{counts}, {self.num_quiet} quiet states, {self.seconds:.1f} s, {whole}"


def moves(scope: Scope, s: State) -> Iterator[tuple[Step, State]]:
    """Everything that can happen next; the states are not canonical yet."""
    yield from router_moves(scope, s)
    yield from prefill_moves(scope, s)
    yield from decode_moves(scope, s)
    yield from time_moves(scope, s)
    yield from fault_moves(scope, s)


def search(scope: Scope, max_states: int | None = None) -> Found:
    """Look at every state, up to ``max_states``; ends at the first one that is wrong."""
    return Search(scope, max_states).run()


class Search:
    """States by number; for each the number of one before it; and all steps that happen by themselves."""

    def __init__(self, scope: Scope, max_states: int | None = None) -> None:
        self._scope = scope
        self._max_states = max_states
        self._began_s = time.monotonic()
        first = canonical(scope, first_state(scope))
        self.states = [first]
        self._numbers = {first: 0}
        self._before = array("l", [-1])
        self._depths = array("l", [0])
        self._edges_from, self._edges_to = array("l"), array("l")
        self._quiet: list[int] = []
        self._num_transitions = 0

    def run(self) -> Found:
        number = 0
        while number < len(self.states):
            if self._max_states is not None and len(self.states) > self._max_states:
                return self._outcome(is_whole=False)
            what = self._expand(number)
            if what:
                return self._outcome(is_whole=False, finding=Finding(what, self._way_to(number)))
            number += 1
        stuck = self._never_quiet()
        if stuck is not None:
            finding = Finding("from here nothing leads to a state in which all has ended", self._way_to(stuck))
            return self._outcome(is_whole=True, finding=finding)
        return self._outcome(is_whole=True)

    def _expand(self, number: int) -> str:
        scope, s = self._scope, self.states[number]
        what = broken(scope, s)
        if what:
            return what
        is_quiet = True
        for step, after in moves(scope, s):
            self._num_transitions += 1
            following = self._number_of(canonical(scope, after), number)
            if step.kind is Kind.PROGRESS:
                is_quiet = False
                self._edges_from.append(number)
                self._edges_to.append(following)
        if is_quiet:
            self._quiet.append(number)
            return unclean(s)
        return ""

    def _number_of(self, s: State, before: int) -> int:
        number = self._numbers.get(s)
        if number is None:
            number = self._numbers[s] = len(self.states)
            self.states.append(s)
            self._before.append(before)
            self._depths.append(self._depths[before] + 1)
        return number

    def _never_quiet(self) -> int | None:
        """The first state from which no quiet one can be reached by progress alone."""
        heads = array("l", [-1]) * len(self.states)
        nexts = array("l", [-1]) * len(self._edges_to)
        for edge, to in enumerate(self._edges_to):
            nexts[edge], heads[to] = heads[to], edge
        good = bytearray(len(self.states))
        for number in self._quiet:
            good[number] = 1
        pending = list(self._quiet)
        while pending:
            edge = heads[pending.pop()]
            while edge >= 0:
                number = self._edges_from[edge]
                if not good[number]:
                    good[number] = 1
                    pending.append(number)
                edge = nexts[edge]
        stuck = good.find(0)
        return None if stuck < 0 else stuck

    def _way_to(self, number: int) -> list[Step]:
        """The steps from the first state, told without swapping names that the canonical form swaps."""
        numbers = []
        while number >= 0:
            numbers.append(number)
            number = self._before[number]
        s, steps = self.states[0], []
        for wanted in map(self.states.__getitem__, reversed(numbers[:-1])):
            step, s = next(move for move in moves(self._scope, s) if canonical(self._scope, move[1]) == wanted)
            steps.append(step)
        return steps

    def _outcome(self, *, is_whole: bool, finding: Finding | None = None) -> Found:
        return Found(
            num_states=len(self.states),
            num_transitions=self._num_transitions,
            depth=self._depths[-1],
            seconds=time.monotonic() - self._began_s,
            num_quiet=len(self._quiet),
            is_whole=is_whole,
            finding=finding,
        )
