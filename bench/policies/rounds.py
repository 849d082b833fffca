"""Runs pairs of policies in turn, each on a router of its own, on workers that stay."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from baton_serve.baton.demo import MODEL_NAME
from bench.client import CHAT, AnswerError, Client
from bench.cluster import router, totals, workers
from bench.policies.workload import conversations
from bench.report.spread import quantile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from baton_serve.baton.cluster.cluster import Cluster
    from bench.policies.workload import Conversation

PAIRS = [
    ("round_robin", "round_robin"),
    ("two_choices", "two_choices"),
    ("least_loaded", "least_loaded"),
    ("prefix", "least_loaded"),
    ("prefix", "affinity"),
]
P_FLAGS = [{"num-blocks": 2048, "max-num-seqs": 8}] * 2
D_FLAGS = [{"num-blocks": 1536, "max-num-seqs": 16}] * 2
QUERIES, HITS = "baton_worker_prefix_cache_queries_total", "baton_worker_prefix_cache_hits_total"


@dataclass
class Clients:
    """What the clients of one run saw."""

    ttft_s: list[float] = field(default_factory=list)
    num_failed: int = 0


@dataclass(frozen=True)
class PolicyResult:
    """What one run measured. Hits are shares of the prompt tokens that were looked for in the cache."""

    ttft_p50_ms: float
    ttft_p99_ms: float
    hits_prefill: float
    hits_decode: float
    requests_per_s: float
    num_failed: int


async def run(cluster: Cluster, prefill: str, decode: str, workload: Sequence[Conversation]) -> PolicyResult:
    """Run the conversations with a pair of policies, on a router of its own."""
    policies = {"pick_prefill": prefill, "pick_decode": decode}
    async with router(cluster, **policies, log_level="warning") as url, Client() as client:
        before = {role: await totals(cluster, *cluster.named(role)) for role in ("prefill", "decode")}
        tally, began_s = Clients(), time.perf_counter()
        await asyncio.gather(*(_talk(client, url, one, tally) for one in workload))
        seconds = time.perf_counter() - began_s
        after = {role: await totals(cluster, *cluster.named(role)) for role in ("prefill", "decode")}
    return PolicyResult(
        ttft_p50_ms=quantile(tally.ttft_s, 50) * 1e3,
        ttft_p99_ms=quantile(tally.ttft_s, 99) * 1e3,
        hits_prefill=_hits(before["prefill"], after["prefill"]),
        hits_decode=_hits(before["decode"], after["decode"]),
        requests_per_s=len(tally.ttft_s) / seconds,
        num_failed=tally.num_failed,
    )


async def _talk(client: Client, url: str, conversation: Conversation, tally: Clients) -> None:
    await asyncio.sleep(conversation.begin_s)
    messages = [{"role": "system", "content": conversation.system}]
    for turn in conversation.turns:
        messages.append({"role": "user", "content": turn.question})
        try:
            answer = await client.stream(url, _body(messages, turn.num_new), CHAT)
            tally.ttft_s.append(answer.until_s(0))
        except (AnswerError, IndexError):  # IndexError: an answer without content
            tally.num_failed += 1
            return
        messages.append({"role": "assistant", "content": answer.text})
        await asyncio.sleep(turn.think_s)


def _body(messages: list[dict[str, str]], num_new: int) -> dict[str, object]:
    return {"model": MODEL_NAME, "messages": messages, "max_tokens": num_new, "ignore_eos": True}


def _hits(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    looked_for = after[QUERIES] - before[QUERIES]
    return (after[HITS] - before[HITS]) / looked_for if looked_for else float("nan")


async def measure(runs: int, seconds: float, rate: float, seed: int) -> dict[tuple[str, str], list[PolicyResult]]:
    """Run all pairs of policies ``runs`` times. The order is reversed each time, so that none is always first."""
    rows: dict[tuple[str, str], list[PolicyResult]] = {pair: [] for pair in PAIRS}
    async with workers(P_FLAGS, D_FLAGS) as cluster:
        # The first run is not counted: in it every D meets every P.
        await run(cluster, "least_loaded", "least_loaded", conversations(seed, "first", seconds / 4, rate))
        for repetition in range(runs):
            for pair in PAIRS if repetition % 2 == 0 else PAIRS[::-1]:
                workload = conversations(seed + repetition, f"{repetition}-{'-'.join(pair)}", seconds, rate)
                rows[pair].append(await run(cluster, *pair, workload))
    return rows
