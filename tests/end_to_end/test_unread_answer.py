"""P has answered, and nobody has read the answer: its blocks do not wait for the lease to expire. Prints the times."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.kits.whole import reference
from tests.kits.whole.stack import MODEL, Stack

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

#: Far longer than any wait here: what ends a lease in these tests is never its expiry.
P_FLAGS = {"lease-duration-ms": 600_000}
ASK = {"kv_transfer_params": {"do_remote_decode": True}, "max_tokens": 1}


async def send_prefill(stack: Stack, request_id: str, prompt: list[int]) -> tuple[Any, asyncio.StreamWriter]:
    """What the router would send to P, on a connection of its own."""
    host, port = stack.workers["prefill-0"].url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"model": MODEL, "prompt": prompt, "temperature": 0, "ignore_eos": True, **ASK}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nx-request-id: {request_id}\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


async def abort(stack: Stack, request_id: str) -> bool:
    url = f"{stack.workers['prefill-0'].internal_url}/internal/abort/{request_id}"
    aborted = (await stack.http.post(url)).json()["aborted"]
    assert isinstance(aborted, bool)
    return aborted


async def test_an_abort_ends_the_lease_of_an_answer_that_was_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with Stack(tmp_path, decode=0, prefill_flags=P_FLAGS, with_router=False) as stack:
        reader, writer = await send_prefill(stack, "aa" * 16, reference.prompt_of(500, seed=1))
        await reader.readuntil(b'"kv_transfer_params"')
        writer.close()
        await writer.wait_closed()
        assert (await stack.state("prefill-0"))["leases"] == 1
        assert not await abort(stack, "bb" * 16), "an id that nobody knows"
        assert (await stack.state("prefill-0"))["leases"] == 1
        start = time.perf_counter()
        assert await abort(stack, "aa" * 16)
        await stack.until_idle()
        with capsys.disabled():
            print(f"\n  abort of an unread answer: blocks back after {(time.perf_counter() - start) * 1e3:.1f} ms")
        assert not await abort(stack, "aa" * 16)
        assert await stack.metric("prefill-0", "baton_worker_lease_outcomes_total", outcome="dropped") == 1


async def test_whenever_the_client_leaves_a_prefill_no_lease_is_left(tmp_path: Path) -> None:
    """A short prompt's prefill takes a few ms; clients leave all through it, and in the moment of its answer."""
    async with Stack(tmp_path, prefill_flags=P_FLAGS) as stack:
        for step in range(60):
            prompt = reference.prompt_of(40, seed=step)
            await leave_after(stack, step * 0.0003, {"model": MODEL, "prompt": prompt, "max_tokens": 9})
        await stack.until_gone()
        await stack.until_idle()


async def leave_after(stack: Stack, delay_s: float, body: dict[str, Any]) -> None:
    task = asyncio.create_task(stack.http.post(f"{stack.router.url}/v1/completions", json=body))
    await asyncio.wait({task}, timeout=delay_s)
    task.cancel()
    await asyncio.wait({task})


async def test_a_prompt_that_fills_the_context_but_for_one_token_is_prefilled_once(tmp_path: Path) -> None:
    length = 64
    async with Stack(tmp_path, worker_flags={"dtype": "float32", "max-model-len": length}) as stack:
        prompt = reference.prompt_of(length - 1, seed=9)
        body = await stack.complete(prompt, ignore_eos=True, return_token_ids=True)
        (choice,) = body["choices"]
        assert (choice["finish_reason"], choice["token_ids"]) == ("length", reference.greedy(tuple(prompt), 1))
        assert body["usage"]["completion_tokens"] == 1
        assert await stack.metric("decode-0", "baton_worker_requests_total") == 0
        await stack.until_idle()
