"""What a vLLM server's page ``/metrics`` says about its load and its KV cache. Pure.

Every sample has a label ``engine``: with data parallelism one server has several engines, which are added up.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from core.protocol.worker import WorkerLoad

if TYPE_CHECKING:
    from collections.abc import Iterable

    from prometheus_client.samples import Sample

#: The page has a thousand lines and more, mostly of histograms; the parser is given only lines that begin with these.
_WANTED = (
    "process_start_time_seconds ",
    "vllm:cache_config_info{",
    "vllm:kv_cache_usage_perc{",
    "vllm:num_requests_running{",
    "vllm:num_requests_waiting{",
    "vllm:num_requests_waiting_by_reason{",
    "vllm:nixl_num_failed_transfers_total{",
    "vllm:nixl_num_kv_expired_reqs_total{",
    "vllm:nixl_num_notifications_after_expiry_total{",
)
_RUNNING = "vllm:num_requests_running"
#: Why a request waits: "capacity" is for room in the engine, "deferred" mostly for blocks that are being read.
_DEFERRED = "deferred"


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the page, all engines together."""

    running: int
    #: Requests that wait for room, and requests whose blocks are being read.
    waiting: int
    reading: int
    num_engines: int
    #: Of the KV cache; 0: it does not say.
    block_size: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    #: Whether the server has a NixlConnector, and what that has counted since the server started.
    has_nixl: bool = False
    num_expired: int = 0
    num_late_notifications: int = 0
    #: When the server's process started, Unix seconds; 0: several processes serve the port, and none says.
    started_s: float = 0.0

    @property
    def full_at(self) -> int | None:
        """The number of requests at which room was short, where some wait for it; else None."""
        return max(1, self.running + self.reading) if self.waiting else None

    def as_worker_load(self, num_leases: int = 0) -> WorkerLoad:
        """The load as Baton's workers report it. vLLM does not tell free blocks from cached ones, and the page says
        nothing of leases.
        """
        return WorkerLoad(
            running=self.running,
            waiting=self.waiting,
            reading=self.reading,
            free_blocks=max(0, self.num_blocks - self.num_used_blocks),
            pinned_blocks=self.num_used_blocks,
            leases=num_leases,
        )


def read_load(page: str) -> ServerLoad:
    """Read the page. Raises ValueError for one that is not vLLM's."""
    lines = [line for line in page.splitlines() if line.startswith(_WANTED)]
    by_name: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                by_name.setdefault(sample.name, []).append(sample)
        return _load(by_name)
    except (ArithmeticError, IndexError, KeyError, TypeError, ValueError):  # the parser raises these for broken lines
        raise ValueError("the page /metrics is not understood") from None


def _load(by_name: dict[str, list[Sample]]) -> ServerLoad:
    if _RUNNING not in by_name:
        raise ValueError("there is no vllm:num_requests_running")
    waiting, reading = _waiting(by_name)
    infos = by_name.get("vllm:cache_config_info", [])
    blocks = {_engine(sample): _whole(sample.labels.get("num_gpu_blocks")) for sample in infos}
    used = sum(
        round(sample.value * blocks.get(_engine(sample), 0)) for sample in by_name.get("vllm:kv_cache_usage_perc", ())
    )
    started = by_name.get("process_start_time_seconds", ())
    return ServerLoad(
        running=_sum(by_name[_RUNNING]),
        waiting=waiting,
        reading=reading,
        num_engines=len({_engine(sample) for sample in by_name[_RUNNING]}),
        block_size=next((_whole(sample.labels.get("block_size")) for sample in infos), 0),
        num_blocks=sum(blocks.values()),
        num_used_blocks=used,
        has_nixl=any(name.startswith("vllm:nixl_") for name in by_name),
        num_expired=_sum(by_name.get("vllm:nixl_num_kv_expired_reqs_total", ())),
        num_late_notifications=_sum(by_name.get("vllm:nixl_num_notifications_after_expiry_total", ())),
        started_s=started[0].value if started else 0.0,
    )


def _waiting(by_name: dict[str, list[Sample]]) -> tuple[int, int]:
    """Requests that wait for room, and those that wait for something else."""
    reasons = by_name.get("vllm:num_requests_waiting_by_reason")
    if reasons is None:
        return _sum(by_name.get("vllm:num_requests_waiting", ())), 0
    counts: Counter[bool] = Counter()
    for sample in reasons:
        counts[sample.labels.get("reason") == _DEFERRED] += int(sample.value)
    return counts[False], counts[True]


def _engine(sample: Sample) -> str:
    return sample.labels.get("engine", "")


def _sum(samples: Iterable[Sample]) -> int:
    return sum(int(sample.value) for sample in samples)


def _whole(text: str | None) -> int:
    """A number in a label; 0 for anything else, such as ``None`` in Python's spelling."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else 0
