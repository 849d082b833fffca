"""Starts and stops workers of a running ``baton up``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from baton_serve.baton.processes.child import ChildDiedError
from baton_serve.baton.processes.control_socket import Tell
from baton_serve.baton.processes.display import status_text
from baton_serve.baton.processes.kept_child import Keeping, KeptChild
from baton_serve.baton.processes.supervisor import Supervisor
from baton_serve.baton.up.plan import DECODE_STAGE, PREFILL_STAGE, one_more
from baton_serve.core.protocol.scale import Answer, NotScaled, Scale, Scaled, Step

STAGES = {"prefill": PREFILL_STAGE, "decode": DECODE_STAGE}


class Scaler:
    """Carries out one command at a time; refuses another meanwhile.

    When a command is cancelled, workers that were starting are stopped at once; those that were draining stay with the
    supervisor, whose ``stop`` stops them.
    """

    def __init__(
        self,
        supervisor: Supervisor[KeptChild],
        keeping: Keeping,
        gpus: tuple[str, ...],
        drain_timeout_s: float,
        on_news: Callable[[str], None],
    ) -> None:
        self._supervisor = supervisor
        self._keeping = keeping
        self._gpus = gpus
        self._drain_timeout_s = drain_timeout_s
        self._on_news = on_news
        self._busy = False

    async def scale(self, command: Scale, tell: Tell) -> Answer:
        """Returns when every new worker is ready, and every superfluous one has drained and ended."""
        if self._busy:
            return NotScaled("another baton scale is under way")
        self._busy = True
        try:
            ends = await asyncio.gather(*self._work(command, tell), return_exceptions=True)
        finally:
            self._busy = False
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, ChildDiedError):
                raise end
        if failed := [str(end) for end in ends if end is not None]:
            return NotScaled("; ".join(failed))
        return Scaled(**{role: len(self._supervisor.stage(stage)) for role, stage in STAGES.items()})

    def _work(self, command: Scale, tell: Tell) -> list[Coroutine[Any, Any, None]]:
        specs = [child.spec for child in self._supervisor.children]
        work = []
        for role, wanted in (("prefill", command.prefill), ("decode", command.decode)):
            if wanted is None:
                continue
            # Workers that do not serve leave first.
            crew = sorted(self._supervisor.stage(STAGES[role]), key=lambda child: bool(child.trouble))
            for _ in range(wanted - len(crew)):
                spec = one_more(role, specs, self._gpus)
                specs.append(spec)
                work.append(self._add(STAGES[role], self._make_child(spec, tell)))
            work += [self._dismiss(STAGES[role], child, tell) for child in reversed(crew[wanted:])]
        return work

    def _make_child(self, spec: Any, tell: Tell) -> KeptChild:
        def on_status(name: str, status: Any) -> None:
            tell(Step(f"{name}: {status_text(status)}"))

        return KeptChild(spec, replace(self._keeping, on_status=on_status))

    async def _add(self, stage: int, child: KeptChild) -> None:
        """Start a worker and wait until it serves. After a ChildDiedError nothing is left of the worker."""
        crew = self._supervisor.stage(stage)[0].crew
        await self._supervisor.add(stage, child, self._keeping.start_timeout_s)
        child.join(crew)
        self._on_news(f"{child.name}: added")

    async def _dismiss(self, stage: int, child: KeptChild, tell: Tell) -> None:
        tell(Step(f"{child.name}: drains"))
        await self._supervisor.dismiss(stage, child, self._drain_timeout_s)
        tell(Step(f"{child.name}: has left"))
        self._on_news(f"{child.name}: removed")
