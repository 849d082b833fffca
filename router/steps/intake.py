"""What a new request is taken through. ``router.build`` makes it, and ``router.front`` uses it."""

from __future__ import annotations

from dataclasses import dataclass

from baton_serve.core.net.late_writes import LateWrites
from baton_serve.core.net.served.body import BodyBudget
from baton_serve.router.queue.priorities import PriorityClasses
from baton_serve.router.steps.admission import Admission
from baton_serve.router.steps.choices import ChoicesRunner
from baton_serve.router.steps.exit import Exit
from baton_serve.router.steps.records import RecordMaker
from baton_serve.router.steps.run import Runner


@dataclass(frozen=True, slots=True)
class Intake:
    """The steps that the front itself calls; each has what it works with."""

    #: Shared by the clients' port and the connections to workers, so that all writes of a turn are put off together.
    late_writes: LateWrites
    #: Bounds the bytes of all bodies that this process holds, on both ports.
    body_budget: BodyBudget
    priorities: PriorityClasses
    admission: Admission
    records: RecordMaker
    runner: Runner
    choices: ChoicesRunner
    exit: Exit
