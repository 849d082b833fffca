"""The processes of a run: how many of each kind, and how they are started."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from baton_serve.baton.cluster.cluster import DEMO_WORKER
from baton_serve.baton.cluster.process import ROUTER, Flags, ProcessSpec
from baton_serve.baton.torture.clients.questions import make_questions
from baton_serve.baton.torture.clients.reference import answer_all
from baton_serve.baton.torture.faults.schedule import FREQUENCIES
from baton_serve.workers.worker import PORT_GRACE_S

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from baton_serve.baton.cluster.process import Startable
    from baton_serve.baton.torture.records import ClientAnswer, Question


class AnyShape(Protocol):
    """What a run needs to know of its processes."""

    @property
    def specs(self) -> Mapping[str, Startable]:
        """How each process except Redis is started, by name."""

    @property
    def flags(self) -> str:
        """The flags of ``baton torture`` for this shape."""

    @property
    def frequencies(self) -> Mapping[tuple[str, str], int]:
        """How often each fault is drawn."""

    @property
    def late_s(self) -> float:
        """Seconds from a death at a failpoint until the run has surely noticed it."""

    def questions(self, seed: int, count: int) -> list[Question]:
        """What clients ask."""

    async def answers(self, folder: Path, questions: Sequence[Question]) -> dict[int, ClientAnswer]:
        """The right answers by the number of the question. Raises NoReferenceError, ChildDiedError."""

    def can_continue(self, question: Question) -> bool:
        """Whether a broken stream with the answer goes on."""


@dataclass(frozen=True)
class Shape:
    """How many processes of each kind there are, how many ranks workers have, and flags beyond the usual ones."""

    prefill: int = 2
    decode: int = 3
    routers: int = 2
    prefill_tp: int = 1
    decode_tp: int = 1
    worker_flags: Flags = field(default_factory=dict)
    router_flags: Flags = field(default_factory=dict)
    #: The run notices the death of a rank when its worker ends. The ports of that one wait for the last answers first.
    late_s: ClassVar[float] = PORT_GRACE_S + 1.0

    @property
    def specs(self) -> dict[str, ProcessSpec]:
        """How each process except Redis is started, by name."""
        worker = {**DEMO_WORKER, "dtype": "float32", "num-blocks": 512, **self.worker_flags}
        kinds = (
            (self.prefill, ProcessSpec("prefill", {"tp": self.prefill_tp, **worker})),
            (self.decode, ProcessSpec("decode", {"tp": self.decode_tp, **worker})),
            (self.routers, ProcessSpec(ROUTER, {"port": 0, "log-requests": True, **self.router_flags})),
        )
        return {f"{spec.kind}-{i}": spec for count, spec in kinds for i in range(count)}

    @property
    def flags(self) -> str:
        """The flags of ``baton torture`` for this shape."""
        ranks = f" --prefill-tp {self.prefill_tp} --decode-tp {self.decode_tp}" if self._tps != {1} else ""
        return f"--prefill {self.prefill} --decode {self.decode} --routers {self.routers}{ranks}"

    @property
    def frequencies(self) -> Mapping[tuple[str, str], int]:
        """How often each fault is drawn."""
        return FREQUENCIES

    def questions(self, seed: int, count: int) -> list[Question]:
        """What clients ask."""
        return make_questions(seed, count)

    async def answers(self, folder: Path, questions: Sequence[Question]) -> dict[int, ClientAnswer]:
        """What a worker of each number of ranks answers when nothing else runs, by the number of the question."""
        flags = {**DEMO_WORKER, "dtype": "float32", "num-blocks": 2048}
        alone = {f"reference-tp{tp}": ProcessSpec("both", {**flags, "tp": tp}) for tp in sorted(self._tps)}
        return await answer_all(folder, questions, alone)

    def can_continue(self, question: Question) -> bool:
        """Any broken stream goes on: our own workers continue with all that was asked."""
        return True

    @property
    def _tps(self) -> set[int]:
        """The numbers of ranks that workers have."""
        return {self.prefill_tp, self.decode_tp}
