"""Reads from the logs of routers which workers died during a request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from baton_serve.baton.torture.records import Attempt

#: The line that ``router/steps/exit.py`` writes at the end of a request.
DEATHS = re.compile(r" request (\w+) \w+ after .*, deaths ([^\s,]+(?: and [^\s,]+)*)")


def note_deaths(folder: Path, attempts: Iterable[Attempt]) -> None:
    """Set ``deaths`` of each attempt: the workers whose deaths its router has counted; empty if no log names the
    attempt.
    """
    deaths = {}
    for path in folder.glob("router-*.log"):
        for told in DEATHS.finditer(path.read_text(errors="replace")):
            deaths[told[1]] = frozenset(told[2].split(" and "))
    for attempt in attempts:
        attempt.deaths = deaths.get(attempt.request_id, frozenset())
