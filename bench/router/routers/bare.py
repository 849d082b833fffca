"""Two legs in Python and nothing else: a limit."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bench.performance.machine import ROOT
from bench.router.harness.flow import Flow
from bench.router.routers.router import Command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.router.routers.router import Place


@dataclass(frozen=True)
class Bare:
    """The program ``bench.router.bare``."""

    name: ClassVar[str] = "bare-legs"
    flow: ClassVar[Flow] = Flow.P_THEN_D
    num_cores: ClassVar[int] = 1

    @contextmanager
    def command(self, place: Place) -> Iterator[Command]:
        """The command."""
        ports = (",".join(map(str, each)) for each in (place.engines.prefill, place.engines.decode))
        yield Command([sys.executable, "-m", "bench.router.bare", str(place.port), *ports], None, ROOT)
