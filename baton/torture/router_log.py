"""What routers wrote about a request at its end: which workers died with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from baton.torture.records import Attempt

#: See ``router.exit``.
DEATHS = re.compile(r" request (\w+) \w+ after .*, deaths (\w+(?: and \w+)*)")


def note_deaths(folder: Path, attempts: Iterable[Attempt]) -> None:
    """Of each attempt, the workers whose deaths its router has counted; none for one that the logs do not tell of."""
    deaths = {}
    for path in folder.glob("router-*.log"):
        for told in DEATHS.finditer(path.read_text(errors="replace")):
            deaths[told[1]] = frozenset(told[2].split(" and "))
    for attempt in attempts:
        attempt.deaths = deaths.get(attempt.request_id, frozenset())
