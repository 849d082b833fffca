"""What the metrics and the log say, and what they cannot be made to say."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from baton_serve.core.process.log import JsonFormatter, TextFormatter
from baton_serve.router.telemetry.metrics.labels import MAX_VALUES, OTHER, BoundedLabel
from baton_serve.router.telemetry.metrics.metrics import PHASES
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import Refuse

NASTY = "x\nforged \x1b[2J\u2028\x85 line"


@pytest.mark.parametrize("stream", [True, False])
async def test_only_a_stream_has_a_first_token_to_wait_for(cluster: Cluster, stream: bool) -> None:
    await cluster.fleet("prefill", "decode")
    assert (await cluster.post(chat(stream=stream))).status_code == 200
    metrics = cluster.metrics
    counts = {PHASES[state]: sum(buckets.counts) for state, buckets in metrics.phases.items()}
    assert counts == {"queue": 1, "prefill": 1, "held": 1, "read": int(stream)}
    assert sum(metrics.ttft.counts) == int(stream)


async def test_itl_has_a_gap_for_every_chunk_after_the_first_token_and_none_unstreamed(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    await cluster.post(chat(stream=False))
    metrics = cluster.metrics
    assert sum(metrics.itl.counts) == metrics.num_chunks == 0
    await cluster.post(chat(stream=True))
    assert sum(metrics.itl.counts) == metrics.num_chunks > 0  # P's token came before D's first chunk


async def test_workers_cannot_invent_labels(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    for i in range(3):
        error: dict[str, Any] = {"message": NASTY, "type": f"t{i}", "code": f"c{i}\n"}
        cluster.workers[0].script.append(Refuse(400, {"error": error}))
        assert (await cluster.post(chat())).json()["error"]["code"] == f"c{i}\n"
    assert dict(cluster.metrics.outcomes) == {("failed", "worker_400"): 3}


@pytest.mark.parametrize("formatter", [TextFormatter("%(levelname).1s %(name)s: %(message)s"), JsonFormatter()])
def test_one_record_is_one_line(formatter: logging.Formatter) -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "code %s", (NASTY,), None)
    line = formatter.format(record)
    assert len(line.splitlines()) == 1 or isinstance(formatter, JsonFormatter)
    assert "\n" not in line and "\x1b" not in line
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["message"] == f"code {NASTY}"


async def test_the_metrics_have_vllms_names_too(cluster: Cluster) -> None:
    """By model, also of a model without requests; streams only have a first token to wait for."""
    await cluster.fleet("prefill", "decode")
    for stream in (True, False):
        await cluster.post(chat(stream=stream))
    await cluster.add("both", model="idle")
    lines = (await cluster.client.get("/metrics")).text.splitlines()
    shown = dict(line.split(" ") for line in lines if line.startswith("vllm:"))
    for name in ("running", "waiting"):
        assert shown[f'vllm:num_requests_{name}{{model_name="m"}}'] == "0.0"
        assert shown[f'vllm:num_requests_{name}{{model_name="idle"}}'] == "0.0"
    assert shown['vllm:time_to_first_token_seconds_count{model_name="m"}'] == "1.0"
    assert shown['vllm:e2e_request_latency_seconds_count{model_name="m"}'] == "2.0"


async def test_clients_cannot_invent_labels(cluster: Cluster) -> None:
    """A worker that does not say which models it serves is asked for any."""
    worker = await cluster.add("both")
    await cluster.post(chat())
    next(iter(cluster.pool)).models = None
    cluster.pool.learned()
    worker.model = "any"
    for number in range(MAX_VALUES + 10):
        cluster.metrics.times[cluster.metrics.models.of(f"m{number}")].e2e.observe(1.0)
    for name in ("x" * 1000, "y", "m"):
        assert (await cluster.post(chat(model=name))).status_code == 200
    text = (await cluster.client.get("/metrics")).text
    counts = dict(line.split(" ") for line in text.splitlines() if "e2e_request_latency_seconds_count{" in line)
    assert len(counts) == MAX_VALUES + 2, "what the worker listed, as many invented ones, and the rest"
    assert counts['vllm:e2e_request_latency_seconds_count{model_name="other"}'] == "12.0"
    assert counts['vllm:e2e_request_latency_seconds_count{model_name="m"}'] == "2.0", "the first ones keep their own"


async def test_names_that_clients_invent_take_no_label_from_a_model(cluster: Cluster) -> None:
    """Also of a worker that comes when they have named all they can, and is asked before the next scrape."""
    label = cluster.metrics.models
    for number in range(MAX_VALUES + 1):
        label.of(f"invented {number}")
    await cluster.add("both", model="m")
    assert (await cluster.post(chat())).status_code == 200
    lines = (await cluster.client.get("/metrics")).text.splitlines()
    shown = dict(line.split(" ") for line in lines if line.startswith("vllm:"))
    assert shown['vllm:e2e_request_latency_seconds_count{model_name="m"}'] == "1.0"
    assert shown['vllm:num_requests_running{model_name="m"}'] == "0.0"


def test_models_that_workers_list_are_bounded_too() -> None:
    label = BoundedLabel()
    assert label.of("named first") == "named first"
    label.workers_list(["x" * 1000, "named first", *map(str, range(2 * MAX_VALUES))])
    shown = {label.of(str(number)) for number in range(3 * MAX_VALUES)}
    assert len(shown - {OTHER}) == 2 * MAX_VALUES - 1
    assert label.of("named first") == "named first"
    assert label.of("x" * 1000) == label.of("one more") == OTHER


async def test_a_request_on_a_worker_counts_as_running(cluster: Cluster) -> None:
    await cluster.fleet("prefill", "decode")
    hang = cluster.workers[0].hangs()
    asked = asyncio.create_task(cluster.post(chat()))
    await eventually(lambda: bool(cluster.workers[0].bodies))
    text = (await cluster.client.get("/metrics")).text
    assert 'vllm:num_requests_running{model_name="m"} 1.0' in text
    hang.release.set()
    assert (await asked).status_code == 200
