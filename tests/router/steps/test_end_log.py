"""The line at the end of a request: for programs, and for people."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from baton_serve.core.process.log import JsonFormatter, TextFormatter
from tests.kits.router.cluster import Cluster, chat, eventually
from tests.kits.router.stub_workers import Raw, Refuse, Reset

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
PHASES = ("queued", "prefilling", "held", "reading", "decoding")


async def only_record(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    await eventually(lambda: not cluster.active)
    (record,) = [record for record in caplog.records if record.name == "baton.router"]
    return record


def as_json(record: logging.LogRecord) -> dict[str, Any]:
    line = JsonFormatter().format(record)
    assert "\n" not in line
    parsed: dict[str, Any] = json.loads(line)
    return parsed


@pytest.mark.settings(log_requests=True)
class TestAll:
    async def test_a_request_that_ends_well_is_a_line_with_all_facts(
        self, cluster: Cluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        _, d = await cluster.fleet("prefill", "decode")
        d.script.append(Reset())
        with caplog.at_level(logging.INFO, "baton.router"):
            response = await cluster.post(chat(stream=True))
            record = await only_record(cluster, caplog)
        line = as_json(record)
        assert line["level"] == "info"
        assert line["request_id"] == response.headers["x-request-id"]
        assert (line["state"], line["ended_in"]) == ("done", None)
        assert line["reason"] is line["error"] is None
        assert (line["endpoint"], line["model"], line["stream"]) == ("/v1/chat/completions", "m", True)
        assert (line["prefill_worker"], line["decode_worker"]) == ("p0", "d1")
        assert (line["retries"], line["deaths"]) == (1, "engined1")
        assert line["tokens"] >= 4
        spent = [line[f"{phase}_ms"] for phase in PHASES]
        assert all(ms >= 0 for ms in spent)
        assert 0 < sum(spent) <= line["total_ms"] + 0.5  # rounded one by one
        assert 0 < line["ttft_ms"] <= line["total_ms"]
        text = TextFormatter().format(record)
        for fact in (
            line["request_id"],
            "p0",
            "d1",
            f"{line['tokens']} tokens",
            "retries 1",
            "deaths engined1",
            "streamed",
        ):
            assert fact in text
        assert all(f"{phase} {line[f'{phase}_ms']} ms" in text for phase in PHASES)

    async def test_a_fact_that_is_not_known_is_null(self, cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
        await cluster.fleet("prefill", "decode")
        with caplog.at_level(logging.INFO, "baton.router"):
            await cluster.post({"model": "m", "prompt": "x", "max_tokens": 1}, "/v1/completions")
            record = await only_record(cluster, caplog)
        line = as_json(record)
        assert ", /v1/completions, model 'm', " in record.getMessage()
        assert (line["state"], line["endpoint"], line["stream"]) == ("done", "/v1/completions", False)
        assert [line[name] for name in ("decode_worker", "tokens", "ttft_ms", "held_ms", "decoding_ms", "deaths")] == [
            None
        ] * 6

    async def test_text_that_others_send_stays_on_its_line(
        self, cluster: Cluster, caplog: pytest.LogCaptureFixture
    ) -> None:
        _, d = await cluster.fleet("prefill", "decode")
        d.script.append(Refuse(400, {"error": {"message": "broke\n2026 E forged \x1b[2J"}}))
        with caplog.at_level(logging.INFO, "baton.router"):
            await cluster.post(chat(stream=True))
            record = await only_record(cluster, caplog)
        assert as_json(record)["error"] == "broke\n2026 E forged \x1b[2J"
        text = TextFormatter().format(record)
        assert "forged" in text
        assert "\n" not in text
        assert "\x1b" not in text


async def test_a_failed_request_is_logged_in_any_case(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    _, d = await cluster.fleet("prefill", "decode")
    d.script.append(Raw([EVENT], "die"))
    with caplog.at_level(logging.WARNING, "baton.router"):
        await cluster.post(chat())
        assert [record for record in caplog.records if record.name == "baton.router"] == []
        d.script.append(Raw([EVENT], "die"))
        await cluster.post(chat(stream=True))
        line = as_json(await only_record(cluster, caplog))
    assert (line["level"], line["state"], line["ended_in"]) == ("warning", "failed", "decoding")
    assert line["reason"] == "upstream_error"
    assert line["error"]


async def test_a_mistake_of_a_client_is_no_line(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    p, _ = await cluster.fleet("prefill", "decode")
    p.script.append(Refuse(400, {"error": {"message": "temperature is no number"}}))
    with caplog.at_level(logging.INFO, "baton.router"):
        assert (await cluster.post(chat())).status_code == 400
        await eventually(lambda: not cluster.active)
    assert [record for record in caplog.records if record.name == "baton.router"] == []


def test_a_fact_does_not_replace_what_every_line_has() -> None:
    record = logging.makeLogRecord({"msg": "true", "facts": {"message": "forged", "n": 3}})
    line = as_json(record)
    assert (line["message"], line["n"]) == ("true", 3)
