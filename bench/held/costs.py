"""What a process costs, from /proc."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

#: Seconds of CPU by thread, by process.
Used = dict[int, dict[int, float]]


def cpu_s(pids: Iterable[int]) -> Used:
    """Seconds of CPU of each thread, by the scheduler's own count, which is finer than ticks of 10 ms."""
    return {
        pid: {int(task.name): _seconds(task / "schedstat") for task in Path(f"/proc/{pid}/task").iterdir()}
        for pid in pids
    }


def _seconds(schedstat: Path) -> float:
    return int(schedstat.read_text().split()[0]) / 1e9


@dataclass(frozen=True)
class Cpu:
    """Shares of one core: of all processes and threads together, and of the busiest thread of each process besides its
    main one.
    """

    total: float
    second_threads: float

    @classmethod
    def between(cls, before: Used, after: Used, seconds: float) -> Cpu:
        """What processes used from one look to the next."""
        total = second = 0.0
        for pid, threads in after.items():
            used = {tid: now_s - before.get(pid, {}).get(tid, 0.0) for tid, now_s in threads.items()}
            total += sum(used.values())
            second += max((used_s for tid, used_s in used.items() if tid != pid), default=0.0)
        return cls(total / seconds, second / seconds)
