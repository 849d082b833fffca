"""Machines' clocks differ by hours, and jump: nothing depends on them.

Redis times the leases by its own clock, everybody else by how long something takes on a clock that only ever runs.
"""

from __future__ import annotations

import ast
import re
import shutil
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from baton_serve.baton.cluster.cluster import REDIS, Cluster
from baton_serve.baton.demo import MODEL_NAME
from baton_serve.baton.processes.embedded_redis import EmbeddedRedis, find_redis_server
from baton_serve.baton.torture.clients.traffic import Traffic
from baton_serve.baton.torture.shape import Shape
from tests.kits.whole.faults import WORKER_FLAGS, running, skip, under_load

if TYPE_CHECKING:
    from tests.conftest import Tell

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "router", "workers")
HOUR_S = 3600
SHAPE = Shape(prefill=2, decode=2, routers=2, worker_flags=WORKER_FLAGS)
#: Where a clock of the day is read, and what it is good for: it is shown to people. One is compared, and says why.
SHOWN = {
    "core/process/log.py": "the time of a log line",
    "router/apps/public.py": "`created` of a model",
    "router/dashboard/live.py": "the time of a snapshot",
    "router/steps/exit.py": "when a request ended, for the dashboard",
    "router/pool/lost.py": "since when a worker is gone, for `/admin/workers`",
    "router/peers/membership.py": "since when a router is alive, for `/admin/routers`",
    "router/telemetry/tracing/provider.py": "the time of a span",
    "router/dialects/responses/translation.py": "`completed_at` of a response",
    "router/steps/records.py": "`created` of the answers to one request",
    "workers/vllm/presence.py": "which of two servers at one URL started last: the other one has ended, and its entry "
    "runs out within seconds",
    "workers/server/answers/job.py": "`created` of an answer",
    "workers/worker.py": "`created` of a model",
}
CLOCKS = {"time", "time_ns", "localtime", "gmtime", "ctime", "CLOCK_REALTIME"}
#: With these a caller of Redis would say when by its own clock.
ABSOLUTE = {"exat", "pxat", "expireat", "pexpireat"}
SHIFT = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *shift;

__attribute__((constructor)) static void begin(void) {
  int fd = open(getenv("CLOCK_SHIFT"), O_RDONLY);
  void *found = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
  if (fd < 0 || found == MAP_FAILED) abort();
  close(fd);
  shift = found;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  int wrong = syscall(SYS_clock_gettime, id, now);
  if (!wrong && shift && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *shift;
  return wrong;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec ts;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &ts);
  now->tv_sec = ts.tv_sec;
  now->tv_usec = ts.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *out) {
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  if (out) *out = ts.tv_sec;
  return ts.tv_sec;
}
"""


def sources(words: Iterable[str]) -> Iterator[tuple[str, ast.Module]]:
    """The modules with one of the words in their text: to parse all of them takes ten seconds."""
    wanted = re.compile(rf"\b(?:{'|'.join(words)})\b")
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if wanted.search(text := path.read_text(encoding="utf-8")):
                yield str(path.relative_to(ROOT)), ast.parse(text)


def reads_clock(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="time"), attr=name):
            return name in CLOCKS
        case ast.ImportFrom(module="time", names=names):
            return any(name.name in CLOCKS for name in names)
        case ast.Import(names=names):
            return any(name.name == "datetime" for name in names)
        case ast.ImportFrom(module="datetime", names=names):
            return any(name.name != "timedelta" for name in names)
    return False


def test_clocks_of_the_day_are_read_where_they_are_shown_only() -> None:
    # What reads a clock names it; `time` alone stands in nearly all modules.
    words = {rf"time\.{name}" for name in CLOCKS} | {"from time import", "datetime"}
    found = {path for path, module in sources(words) if any(map(reads_clock, ast.walk(module)))}
    assert found == set(SHOWN)


def test_redis_is_told_durations_only() -> None:
    for path, module in sources(ABSOLUTE):
        for node in ast.walk(module):
            if isinstance(node, ast.keyword):
                assert node.arg not in ABSOLUTE, path
            if isinstance(node, ast.Attribute):
                assert node.attr not in ABSOLUTE, path


class ShiftedCluster(Cluster):
    """Every process, Redis too, has a clock of the day of its own."""

    def __init__(self, folder: Path, shape: Shape, library: Path) -> None:
        self.folder, self._library = folder, library
        specs = {name: replace(spec, environ=self._environ(name)) for name, spec in shape.specs.items()}
        super().__init__(folder, specs)
        for name in [*self.kinds, REDIS]:
            self.shift(name, 0)
        binary = folder / "redis-shifted"
        variables = " ".join(f"{key}={value}" for key, value in self._environ(REDIS).items())
        binary.write_text(f'#!/bin/sh\nexec env {variables} {find_redis_server()} "$@"\n')
        binary.chmod(0o700)
        self.redis = EmbeddedRedis(log_path=folder / "redis.log", binary=binary)

    def _environ(self, name: str) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "CLOCK_SHIFT": str(self._file(name))}

    def shift(self, name: str, hours: float) -> None:
        """Its clock is so much fast, from now on."""
        if not self._file(name).exists():
            self._file(name).write_bytes(bytes(8))
        with self._file(name).open("r+b") as file:
            file.write(struct.pack("q", round(hours * HOUR_S)))

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.shift"


def build(folder: Path) -> Path:
    source, library = folder / "shift.c", folder / "shift.so"
    source.write_text(SHIFT)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


async def hours_fast(cluster: ShiftedCluster, name: str) -> int:
    """By how much a worker's clock is fast: it says when it answered."""
    body = {"model": MODEL_NAME, "prompt": "The baton", "max_tokens": 1}
    answer = await cluster.http.post(f"{cluster.processes[name].url}/v1/completions", json=body)
    return round((answer.json()["created"] - time.time()) / HOUR_S)


@pytest.mark.faults
@pytest.mark.timeout(400)
async def test_clocks_differ_and_jump(tmp_path: Path, tell: Tell) -> None:
    """Everybody is hours from everybody else; then Redis alone jumps an hour ahead, then back, then the others do."""
    if shutil.which("cc") is None:
        skip("there is no C compiler")
    cluster = ShiftedCluster(tmp_path, SHAPE, build(tmp_path))
    hours = [-30, 5, 0, 7, -3, 11, 2]
    workers = [name for name, kind in cluster.kinds.items() if kind != "router"]
    for name, hour in zip([*cluster.kinds, REDIS], hours, strict=True):
        cluster.shift(name, hour)

    async def nothing(traffic: Traffic) -> None:
        await traffic.ended(12)

    async def redis_jumps_ahead(traffic: Traffic) -> None:
        """All leases, and all announcements, have run out at once."""
        cluster.shift(REDIS, 3)
        await traffic.ended(12)

    async def redis_jumps_back(traffic: Traffic) -> None:
        cluster.shift(REDIS, -3)
        await traffic.ended(12)

    async def everybody_jumps(traffic: Traffic) -> None:
        for turn in (-1, 1):
            for name, hour in zip(cluster.kinds, hours, strict=False):
                cluster.shift(name, hour + 9 * turn)
            for name, hour in zip(workers, hours, strict=False):
                assert await hours_fast(cluster, name) == hour + 9 * turn, f"{name} has not jumped"
            await traffic.ended(12)

    async with running(tmp_path, SHAPE, cluster=cluster) as baton:
        with redis.Redis.from_url(cluster.redis.url) as client:
            seconds, _ = client.time()
        assert round((seconds - time.time()) / HOUR_S) == hours[-1], "Redis' clock was not shifted"
        for name, hour in zip(workers, hours, strict=False):
            assert await hours_fast(cluster, name) == hour, f"the clock of {name} was not shifted"
        for what in (nothing, redis_jumps_ahead, redis_jumps_back, everybody_jumps):
            told = await under_load(baton, what)
            tell(f"clocks, {what.__name__}: {told}")
            assert told.num_across and told.num_meanwhile
