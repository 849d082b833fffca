"""What ``/metrics`` says of handshakes and reads."""

from __future__ import annotations

from baton_serve.core.protocol.worker import WorkerLoad
from baton_serve.workers.engine.blocks.block_pool import PoolStats
from baton_serve.workers.engine.counters import Counters, EngineStats
from baton_serve.workers.handshake.peer_view import HandshakeStats
from baton_serve.workers.server.metrics import WorkerMetrics
from tests.kits.worker.front import TEXT, completion, front, tokens_of

POOL = PoolStats(total=1, free=1, cached=0, pinned=0, leased=0, leases=0)
EMPTY = EngineStats(Counters(), POOL, WorkerLoad())


def page(handshakes: HandshakeStats, counters: Counters | None = None) -> list[str]:
    stats = EngineStats(counters or Counters(), POOL, WorkerLoad())
    return WorkerMetrics(lambda: stats, dict, lambda: handshakes).render().decode().splitlines()


def starting(lines: list[str], name: str) -> list[str]:
    return [line for line in lines if line.startswith(f"baton_worker_{name}")]


def test_handshakes_are_counted_by_state() -> None:
    lines = page(HandshakeStats(states={"connecting": 0, "connected": 2, "failed": 1}))
    assert starting(lines, "handshakes{") == [
        'baton_worker_handshakes{state="connecting"} 0.0',
        'baton_worker_handshakes{state="connected"} 2.0',
        'baton_worker_handshakes{state="failed"} 1.0',
    ]


def test_handshakes_that_are_over() -> None:
    lines = page(HandshakeStats(failures={"timeout": 3}, num_done=4, done_seconds=0.5, stuck_reads=2))
    assert starting(lines, "handshake_failures") == ['baton_worker_handshake_failures_total{reason="timeout"} 3.0']
    assert starting(lines, "handshake_seconds") == [
        "baton_worker_handshake_seconds_count 4.0",
        "baton_worker_handshake_seconds_sum 0.5",
    ]
    assert starting(lines, "reads_stuck") == ["baton_worker_reads_stuck 2.0"]


def test_reads() -> None:
    lines = page(HandshakeStats(), Counters(read_descriptors=7, reads_timed_out=1))
    assert starting(lines, "read_descriptors") == ["baton_worker_read_descriptors_total 7.0"]
    assert starting(lines, "reads_timed_out") == ["baton_worker_reads_timed_out_total 1.0"]


def test_what_loading_took() -> None:
    metrics = WorkerMetrics(lambda: EMPTY, dict, load_seconds={"weights": 2.5, "fingerprint": 0.25})
    assert starting(metrics.render().decode().splitlines(), "load_seconds") == [
        'baton_worker_load_seconds{part="weights"} 2.5',
        'baton_worker_load_seconds{part="fingerprint"} 0.25',
    ]


async def test_vllms_names() -> None:
    """Counted by model, as vLLM counts: P's leg ends by length."""
    async with front() as worker:
        await worker.http.post("/v1/completions", json=completion("hello", max_tokens=3))
        await worker.http.post("/v1/completions", json=completion("hello", max_tokens=100))
        await worker.http.post("/v1/completions", json=completion(kv_transfer_params={"do_remote_decode": True}))
        lines = (await worker.http.get("/metrics")).text.splitlines()
    shown = dict(line.split(" ") for line in lines if line.startswith("vllm:") and "_created" not in line)
    num_prompt, num_whole = len(tokens_of("hello")), len(tokens_of(TEXT)) + 1
    assert shown == {
        'vllm:num_requests_running{model_name="relay"}': "0.0",
        'vllm:num_requests_waiting{model_name="relay"}': "0.0",
        'vllm:kv_cache_usage_perc{model_name="relay"}': "0.2",
        'vllm:prompt_tokens_total{model_name="relay"}': f"{3 * num_prompt}.0",
        'vllm:generation_tokens_total{model_name="relay"}': f"{3 + num_whole + 1}.0",
        'vllm:request_success_total{finished_reason="stop",model_name="relay"}': "1.0",
        'vllm:request_success_total{finished_reason="length",model_name="relay"}': "2.0",
    }
    assert "vllm:" not in WorkerMetrics(lambda: EMPTY, dict).render().decode()
