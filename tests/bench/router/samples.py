"""Windows of load that never were."""

from __future__ import annotations

from typing import Any

from bench.router.harness.sample import LoadResult, Sample


def sample(router: str, workload: str, router_cpu_s: float = 1.0, floor_ms: float = 0.0, **load: Any) -> Sample:
    """A window of two seconds with 1,000 requests."""
    numbers = {
        "seconds": 2.0,
        "started": 1000,
        "answered": 1000,
        "failed": 0,
        "tokens": 0,
        "events": 0,
        "chunks": 0,
        "ttft_p50_us": 1000.0,
        "ttft_p99_us": 3000.0,
        "itl_p99_us": 0.0,
        "unfinished": 0,
        **load,
    }
    result = LoadResult(**numbers)
    return Sample(router, workload, result, router_cpu_s, 0.5, 60.0, (1.0, 1.0, 0.0, 0.0), floor_ms)


def run(*samples: Sample) -> dict[tuple[str, str], Sample]:
    """One run."""
    return {(one.router, one.workload): one for one in samples}
