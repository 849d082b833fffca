"""``make bench``: the same load straight at a stub worker and through the router; the difference is the router.

The router gets one core, stub and load generator another one. CPU time per request and per token is what to compare
between versions: other programs on the machine change throughput and latency more than they change CPU time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_ROUTER = """
import sys
from router.main import run
from router.settings import RouterSettings
port, p, d = sys.argv[1:]
sys.exit(run(RouterSettings(redis_url="", port=int(port), prefill=(p,), decode=(d,), log_level="warning")))
"""


@dataclass(frozen=True)
class Workload:
    """One kind of load. ``pace_us`` are microseconds between two tokens of a stream; 0: as fast as the stub can."""

    connections: int
    tokens: int
    stream: bool
    pace_us: int
    prompt_bytes: int


WORKLOADS = {
    "short": Workload(connections=32, tokens=1, stream=False, pace_us=0, prompt_bytes=1024),
    "streams": Workload(connections=128, tokens=64, stream=True, pace_us=10_000, prompt_bytes=1024),
    "burst": Workload(connections=16, tokens=128, stream=True, pace_us=0, prompt_bytes=1024),
    "long": Workload(connections=8, tokens=1, stream=False, pace_us=0, prompt_bytes=102_400),
}


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma-separated, of: %(default)s")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one run (default %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs; medians are shown (default %(default)s)")
    arguments = parser.parse_args()
    print(f"{'workload':9} {'to':7} {'req/s':>8} {'events/s':>9} {'first p50':>10} {'p99 ms':>8} ", end="")
    print(f"{'CPU us/req':>11} {'us/event':>9} {'errors':>7}", flush=True)
    with _stub() as (prefill, decode), _router(prefill, decode) as (process, port):
        for name in arguments.workloads.split(","):
            _measure(name, arguments.seconds, arguments.runs, decode, process.pid, port)
    return 0


def _measure(name: str, seconds: float, runs: int, stub_port: int, router_pid: int, router_port: int) -> None:
    direct, routed = [], []
    for _ in range(runs):
        direct.append(_load(stub_port, name, seconds, None))
        routed.append(_load(router_port, name, seconds, router_pid))
    for label, results in (("direct", direct), ("router", routed)):
        row = {key: median(result[key] for result in results) for key in results[0]}
        print(
            f"{name:9} {label:7} {row['requests_per_s']:8.0f} {row['events_per_s']:9.0f} {row['first_p50_ms']:10.2f} "
            f"{row['first_p99_ms']:8.2f} {row['cpu_us_request']:11.0f} {row['cpu_us_event']:9.1f} {row['errors']:7.0f}",
            flush=True,
        )


def _load(port: int, name: str, seconds: float, pid: int | None) -> dict[str, float]:
    workload = json.dumps({**asdict(WORKLOADS[name]), "seconds": seconds})
    before_s, began_s = _cpu_s(pid), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", str(port), workload],
        check=True,
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        preexec_fn=_on_last_core,
    )
    result: dict[str, float] = json.loads(done.stdout)
    # The process worked during the warm-up as well: only the measured share of the time counts.
    share = min(1.0, seconds / (time.perf_counter() - began_s))
    cpu_us = (_cpu_s(pid) - before_s) * 1e6 * share
    result["cpu_us_request"] = cpu_us / max(1, result["requests"])
    result["cpu_us_event"] = cpu_us / result["events"] if result["events"] else 0.0
    return result


def _cpu_s(pid: int | None) -> float:
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _on_first_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _on_last_core() -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


@contextlib.contextmanager
def _stub() -> Iterator[tuple[int, int]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.stub"], stdout=subprocess.PIPE, text=True, preexec_fn=_on_last_core
    )
    with process:
        try:
            assert process.stdout is not None
            prefill, decode = json.loads(process.stdout.readline())
            yield prefill, decode
        finally:
            process.terminate()


@contextlib.contextmanager
def _router(prefill: int, decode: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-c", START_ROUTER, str(port), f"127.0.0.1:{prefill}", f"127.0.0.1:{decode}"]
    with subprocess.Popen(command, preexec_fn=_on_first_core) as process:
        try:
            _until_it_listens(port)
            yield process, port
        finally:
            process.terminate()


def _until_it_listens(port: int) -> None:
    end_s = time.monotonic() + 30
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise TimeoutError("the router did not start")


if __name__ == "__main__":
    sys.exit(main())
