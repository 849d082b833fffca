"""What a vLLM server's page ``/metrics`` says about its load and its KV cache. Pure.

Every sample has a label ``engine``: with data parallelism one server has several engines, which are added up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from baton_serve.core.protocol.worker import WorkerLoad

#: Bytes of the page that are read. vLLM 0.32 writes some 50 KB for an engine and a model.
MAX_PAGE_BYTES = 256 << 10
#: Most lines of all names together: each name has one line for each engine, and one name two.
_MAX_SAMPLES = 1024
#: Most bytes of a line that is read.
MAX_LINE_BYTES = 16 << 10
#: The page has a thousand lines and more, mostly of histograms; only lines that begin with these are looked at.
_WANTED = (
    b"process_start_time_seconds ",
    b"vllm:cache_config_info{",
    b"vllm:kv_cache_usage_perc{",
    b"vllm:num_requests_running{",
    b"vllm:num_requests_waiting{",
    b"vllm:num_requests_waiting_by_reason{",
    b"vllm:nixl_num_failed_transfers_total{",
    b"vllm:nixl_num_kv_expired_reqs_total{",
    b"vllm:nixl_num_notifications_after_expiry_total{",
)
#: Labels of all lines together. vLLM 0.32 has two or three in a line, and some thirty in the cache's.
_MAX_LABELS = 8 << 10
#: Numbers are below this; a page that is right has only integers that a float holds, and times.
_NUMBERS_END = 2.0**53
#: A name begins only where a word does, and what has matched is not given back (``++``, ``*+``): either would take
#: quadratic time of a long word or of a value with many escapes.
_LABEL = re.compile(rb'\b(\w++)="([^"\\]*+(?:\\.[^"\\]*+)*+)"')
_RUNNING = "vllm:num_requests_running"
#: Why a request waits: "capacity" is for room in the engine, "deferred" mostly for blocks that are being read.
_DEFERRED = b"deferred"


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """One reading of the page, all engines together."""

    running: int
    #: Requests that wait for room, and requests whose blocks are being read.
    waiting: int
    reading: int
    num_engines: int
    #: The KV cache's; 0: the page does not say.
    block_size: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    #: Whether the server has a NixlConnector, as far as the page tells, and what the connector has counted since the
    #: server started.
    has_nixl: bool = False
    num_expired: int = 0
    num_late_notifications: int = 0
    #: When the server's process started, Unix seconds; 0: several processes serve the port, and none says.
    started_s: float = 0.0
    #: Whether the page is longer than what was read of it: what is missing may be there.
    is_cut: bool = False

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


class _Sample(NamedTuple):
    labels: dict[bytes, bytes]
    value: float


def read_load(page: bytes, *, is_cut: bool = False) -> ServerLoad:
    """Read the page, or (``is_cut``) its beginning. Raises ValueError for one that is not vLLM's."""
    by_name: dict[str, list[_Sample]] = {}
    num_samples = num_labels = 0
    for start in _WANTED:
        for line in _lines(page, start):
            num_samples += 1
            num_labels += line.count(b'="')
            if num_samples > _MAX_SAMPLES or num_labels > _MAX_LABELS:
                raise ValueError("the page /metrics has too many engines or labels")
            by_name.setdefault(start[:-1].decode(), []).append(_sample(line))
    return _load(by_name, is_cut=is_cut)


def _lines(page: bytes, start: bytes) -> Iterator[bytes]:
    """What follows the name in each whole line that begins with ``start``. Pages have all lines of a name together."""
    at = 0 if page.startswith(start) else page.find(b"\n" + start) + 1
    while page.startswith(start, at):
        end = page.find(b"\n", at)
        if end < 0:  # it may be cut off
            return
        yield page[at + len(start) - 1 : end]
        at = end + 1


def _sample(line: bytes) -> _Sample:
    """What follows a name: labels, if there are any, a value, and perhaps a time. Raises ValueError."""
    if len(line) > MAX_LINE_BYTES:
        raise ValueError("the page /metrics has a line that is too long")
    labels, brace, numbers = line.rpartition(b"}")
    value = float((numbers.split() or [b""])[0])
    if not 0 <= value < _NUMBERS_END or line.startswith(b"{") != bool(brace):
        raise ValueError("the page /metrics is not understood")
    return _Sample(dict(_LABEL.findall(labels)), value)


def _load(by_name: dict[str, list[_Sample]], *, is_cut: bool) -> ServerLoad:
    if _RUNNING not in by_name:
        raise ValueError("there is no vllm:num_requests_running")
    waiting, reading = _waiting(by_name)
    infos = by_name.get("vllm:cache_config_info", [])
    blocks = {_engine(sample): _whole(sample.labels.get(b"num_gpu_blocks")) for sample in infos}
    used = sum(
        round(min(1.0, sample.value) * blocks.get(_engine(sample), 0))
        for sample in by_name.get("vllm:kv_cache_usage_perc", ())
    )
    started = by_name.get("process_start_time_seconds", ())
    return ServerLoad(
        running=_sum(by_name[_RUNNING]),
        waiting=waiting,
        reading=reading,
        num_engines=len({_engine(sample) for sample in by_name[_RUNNING]}),
        block_size=next((_whole(sample.labels.get(b"block_size")) for sample in infos), 0),
        num_blocks=sum(blocks.values()),
        num_used_blocks=used,
        has_nixl=is_cut or any(name.startswith("vllm:nixl_") for name in by_name),
        num_expired=_sum(by_name.get("vllm:nixl_num_kv_expired_reqs_total", ())),
        num_late_notifications=_sum(by_name.get("vllm:nixl_num_notifications_after_expiry_total", ())),
        started_s=started[0].value if started else 0.0,
        is_cut=is_cut,
    )


def _waiting(by_name: dict[str, list[_Sample]]) -> tuple[int, int]:
    """The numbers of requests that wait for room, and that wait for something else."""
    reasons = by_name.get("vllm:num_requests_waiting_by_reason")
    if reasons is None:
        return _sum(by_name.get("vllm:num_requests_waiting", ())), 0
    counts: Counter[bool] = Counter()
    for sample in reasons:
        counts[sample.labels.get(b"reason") == _DEFERRED] += int(sample.value)
    return counts[False], counts[True]


def _engine(sample: _Sample) -> bytes:
    return sample.labels.get(b"engine", b"")


def _sum(samples: Iterable[_Sample]) -> int:
    return sum(int(sample.value) for sample in samples)


def _whole(text: bytes | None) -> int:
    """A number in a label; 0 for anything else, such as ``None`` in Python's spelling."""
    return int(text) if text is not None and text.isdigit() and len(text) < 16 else 0
