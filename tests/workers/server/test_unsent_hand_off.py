"""Hand-offs whose answer the client cannot have: nothing else would end their leases before they expire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from baton_serve.core.net.served.call import HttpCall
from baton_serve.core.protocol.errors import ApiError
from baton_serve.core.protocol.openai.requests import CompletionRequest
from baton_serve.workers.engine.api import FinishReason, HandOff, TokenOutput, TokenStream
from baton_serve.workers.server.answers.job import Job, JobFactory
from baton_serve.workers.server.answers.prompts import Prompts
from baton_serve.workers.server.answers.serving import Serving
from baton_serve.workers.server.calls import Asked
from baton_serve.workers.server.client import Client
from baton_serve.workers.server.identity import Identity
from baton_serve.workers.server.metrics import WorkerMetrics
from baton_serve.workers.text.tokenizer import Tokenizer
from tests.kits.worker.calls import FakeConnection, NoCalls
from tests.kits.worker.front import RecordingLeases, ScriptedEngine, completion, fast_tokenizer, no_forms, render
from tests.kits.worker.hand_off import ASK

LEASE = "lease-x"
TOKEN = TokenOutput(token=9, finish=FinishReason.LENGTH, hand_off=HandOff(LEASE, [1], 2))


class OneStream(ScriptedEngine):
    """Hands out a stream that the test feeds."""

    def __init__(self) -> None:
        super().__init__([])
        self.stream = TokenStream(lambda: None)

    def submit(self, request: Any) -> TokenStream:
        self.changed.set()
        return self.stream

    def hand_off(self) -> None:
        self.lease(LEASE, "r")
        self.stream.put(TOKEN)


class Prefill:
    """A prefill on an engine with one stream."""

    def __init__(self, identity: Identity, job: Job) -> None:
        self.engine = OneStream()
        self.leases = RecordingLeases(self.engine)
        self.job = job
        self.serving = Serving(self.engine, self.leases, identity, WorkerMetrics(self.engine.stats, dict), lambda: None)


@contextlib.asynccontextmanager
async def asked() -> AsyncIterator[Prefill]:
    identity = Identity(
        engine_id="e",
        root="/models/x",
        model="relay",
        created=1,
        weights="f",
        vocab_size=300,
        max_model_len=100,
        internal_host="127.0.0.1",
        internal_port=1,
    )
    tokenizer = Tokenizer(fast_tokenizer(), render, eos_token_ids=frozenset({1}), special_ids=frozenset({0, 1}))
    jobs = JobFactory(identity, tokenizer, Prompts(tokenizer, identity.max_model_len), no_forms)
    job = await jobs.make(CompletionRequest, completion(**ASK), Asked({}))
    try:
        yield Prefill(identity, job)
    finally:
        tokenizer.close()


def client_of(call: HttpCall) -> Client:
    return Client(call, "r")


@pytest.mark.parametrize("arrives", [True, False])
async def test_a_hand_off_in_the_turn_in_which_the_client_leaves_is_dropped(arrives: bool) -> None:
    async with asked() as one:
        task = asyncio.create_task(one.serving.answer(one.job, client_of(FakeConnection(NoCalls()).ask())))
        await one.engine.changed.wait()
        if arrives:
            one.engine.hand_off()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert one.leases.dropped == ([LEASE] if arrives else [])


async def test_a_lease_that_ends_between_its_token_and_its_grant_is_not_handed_over() -> None:
    """Its request is aborted, or sent again, or its router is gone."""
    async with asked() as one:
        task = asyncio.create_task(one.serving.answer(one.job, client_of(FakeConnection(NoCalls()).ask())))
        await one.engine.changed.wait()
        one.engine.hand_off()
        assert one.leases.drop_request("r")
        with pytest.raises(ApiError) as raised:
            await task
        assert (raised.value.status, raised.value.code) == (499, "aborted")


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_client_that_has_left_when_its_answer_is_sent_leaves_no_blocks(leaves: bool) -> None:
    """The turn of the loop in which it leaves is that of the answer."""
    async with asked() as one:
        call = FakeConnection(NoCalls()).ask()
        answer = asyncio.create_task(one.serving.answer(one.job, client_of(call)))
        await one.engine.changed.wait()
        one.engine.hand_off()
        if leaves:
            call.gone()
        await answer
        assert one.leases.granted == [LEASE]
        assert one.leases.dropped == ([LEASE] if leaves else [])
        assert call.response_complete == (not leaves)
