"""What became of all requests of a simulated cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.scale.cluster.request import End, Request

#: What a client was promised: the first token, which may take so long and twice what P needs for the prompt; the pause
#: after it, and the pace of the rest.
FIRST_S, PROMPT_TOKEN_S = 1.0, 2 / 6617
PAUSE_S, TOKEN_S = 1.0, 0.1


@dataclass
class Outcome:
    """Counts and times of requests that ended. Every request ends once; another end raises RuntimeError."""

    ends: Counter[End] = field(default_factory=Counter)
    #: Seconds from coming to the first token, and to D's first one.
    first_s: list[float] = field(default_factory=list)
    second_s: list[float] = field(default_factory=list)
    num_come: int = 0
    num_kept: int = 0
    #: Tokens that P have computed for requests that have ended, and those of them that no answer came from.
    num_computed: int = 0
    num_wasted: int = 0
    #: Tokens of prompts, and how many of them P and D found in their caches.
    num_prompt_tokens: int = 0
    num_found_by_p: int = 0
    num_found_by_d: int = 0
    num_migrated: int = 0
    #: When the last one ended.
    last_end_s: float = 0.0

    def came(self) -> None:
        """Count a request."""
        self.num_come += 1

    @property
    def num_live(self) -> int:
        """Requests that have come and have not ended."""
        return self.num_come - sum(self.ends.values())

    def ended(self, request: Request, end: End, now_s: float) -> None:
        """Take a request that is over."""
        if request.end is not None:
            raise RuntimeError(f"{request!r} ends again: {end}")
        request.end = end
        self.last_end_s = now_s
        self.ends[end] += 1
        self.num_wasted += request.wasted
        self.num_migrated += request.attempts.num_migrations
        came_s = request.job.came_s
        if request.first_s >= 0:
            self.first_s.append(request.first_s - came_s)
        if request.second_s >= 0:
            self.second_s.append(request.second_s - came_s)
        self.num_kept += end is End.DONE and _is_kept(request, now_s)


def _is_kept(request: Request, now_s: float) -> bool:
    num_new = request.job.num_new
    if request.first_s - request.job.came_s > FIRST_S + request.job.num_tokens * PROMPT_TOKEN_S:
        return False
    if num_new == 1:
        return True
    return request.second_s - request.first_s <= PAUSE_S and now_s - request.second_s <= TOKEN_S * num_new


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of all do not exceed; NaN without values."""
    if not values:
        return float("nan")
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
