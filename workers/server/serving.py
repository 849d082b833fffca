"""Runs jobs on the engine and answers them.

A request is one of three legs, told apart by ``kv_transfer_params``:

plain    the whole answer, from here
prefill  one token, blocks pinned under a lease; the answer says how to read them (P)
decode   blocks read from P, the answer after P's first token (D)

Any of them may go on where the stream of another worker broke off.

Response headers wait for the first output of the engine, so that a status never hides an error. A client that leaves
cancels the request where it stands: the engine's stream is closed, the blocks are free.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from core.process.failpoints import hit
from core.protocol.handoff import KVTransferParams
from workers.engine.api import AbortedError, EngineError
from workers.server.engine_errors import to_api_error
from workers.server.token_ids import END, SIGN_OF_LIFE, SILENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from workers.engine.api import Engine, HandOff, TokenOutput, TokenStream
    from workers.server.http import Client
    from workers.server.identity import Identity
    from workers.server.job import Job
    from workers.server.metrics import WorkerMetrics


class LeaseControl(Protocol):
    """What the front asks of P's lease keeper."""

    async def grant(self, lease_id: str) -> bool:
        """Hold the lease in the store. Returns also when the store cannot be reached: the keeper tries again.

        False: the lease has ended already, its blocks are nobody's.
        """

    def drop(self, lease_id: str) -> None:
        """Nobody will ever read it: unpin the blocks now, and end the lease in the store. Never raises."""

    def drop_request(self, request_id: str, but: str = "") -> bool:
        """The same for all that was granted for a request, except ``but``; False if nothing is left of that."""

    def drop_all(self, suffix: str) -> int:
        """The same for all requests whose id ends with ``suffix``; the number of leases."""


class Serving:
    """Runs one job for one client."""

    def __init__(
        self,
        engine: Engine,
        leases: LeaseControl,
        identity: Identity,
        metrics: WorkerMetrics,
        on_change: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._leases = leases
        self._identity = identity
        self._metrics = metrics
        self._on_change = on_change

    async def answer(self, job: Job, client: Client) -> None:
        """Run ``job`` to its end. Raises ApiError; whether the answer had begun is the client's to know."""
        self._on_change()
        try:
            if job.leg.hand_off:
                await self._hand_off(job, client)
            elif job.request.stream:
                await self._stream(job, client)
            else:
                await self._whole(job, client)
        except EngineError as error:
            raise to_api_error(error) from error
        finally:
            self._metrics.observe(job.transcript)
            self._on_change()

    def _submit(self, job: Job) -> TokenStream:
        """Who asks again under one request id reads the answers before no more: the engine aborts what runs, and here
        go the blocks that were handed off, except those that this very request is to read.

        At once, since it may have to wait for room that they take. Who is refused has taken nobody's place.
        """
        outputs = self._engine.submit(job.engine_request)
        if not outputs.is_refused:
            remote = job.leg.remote
            self._leases.drop_request(job.engine_request.request_id, but="" if remote is None else remote.lease_id)
        return outputs

    async def _stream(self, job: Job, client: Client) -> None:
        async with contextlib.aclosing(self._submit(job)) as outputs:
            clock = asyncio.get_running_loop().time
            last_s = clock()
            async for output in outputs:
                data = _events(job, output)
                if not data and clock() - last_s >= SILENCE_S:
                    data = _sign_of_life(job)
                if not client.started:
                    await client.start_stream()
                    data = _opening(job) + data
                if job.transcript.finish_reason is not None:
                    await client.send_last(data)
                    return
                if data:
                    await client.send_part(data)
                    last_s = clock()
        raise AbortedError("the engine ended the sequence early")

    async def _whole(self, job: Job, client: Client) -> None:
        texts = [job.first_text]
        async with contextlib.aclosing(self._submit(job)) as outputs:
            async for output in outputs:
                texts.append(job.transcript.add(output))
                if job.transcript.finish_reason is not None:
                    break
        await self._send_whole(job, client, "".join(texts))

    async def _hand_off(self, job: Job, client: Client) -> None:
        async with contextlib.aclosing(self._submit(job)) as outputs:
            output = await self._only(outputs)
            if output is None:
                raise AbortedError("the engine ended the sequence early")
            text = job.transcript.add(output)
            if output.hand_off is None or job.transcript.finish_reason == "stop":
                if output.hand_off is not None:  # a stop string in the first token: no D will come
                    self._leases.drop(output.hand_off.lease_id)
                await self._send_whole(job, client, text)
                return
            with self._held(output.hand_off.lease_id, client):
                hit("worker.grant.before")
                if not await self._leases.grant(output.hand_off.lease_id):
                    raise AbortedError("the request was aborted when its blocks were about to be handed over")
                hit("worker.grant.after")
                await self._send_whole(job, client, text, output.hand_off)

    async def _only(self, outputs: TokenStream) -> TokenOutput | None:
        """The token of a hand-off. One that arrives in the very turn in which the client leaves is not overlooked."""
        try:
            return await anext(outputs, None)
        except asyncio.CancelledError:
            output = _take_now(outputs)
            if output is not None and output.hand_off is not None:
                self._leases.drop(output.hand_off.lease_id)
            raise

    async def _send_whole(self, job: Job, client: Client, text: str, hand_off: HandOff | None = None) -> None:
        transcript = job.transcript
        if transcript.finish_reason is None:
            raise AbortedError("the engine ended the sequence early")
        logprobs = transcript.take_logprobs()
        params = None if hand_off is None else self._params(job, hand_off, logprobs)
        tokens = transcript.tokens[transcript.num_given :] if job.request.return_token_ids else None
        body = job.reply.whole(text, transcript.finish_reason, logprobs, transcript.usage, params, tokens)
        await client.send_json(200, body)

    def _params(self, job: Job, hand_off: HandOff, first_logprobs: dict[str, Any] | None) -> KVTransferParams:
        """What D needs to read the blocks and to go on exactly here."""
        request, identity = job.engine_request, self._identity
        return KVTransferParams(
            do_remote_prefill=True,
            do_remote_decode=False,
            remote_engine_id=identity.engine_id,
            remote_request_id=request.request_id,
            remote_host=identity.internal_host,
            remote_port=identity.internal_port,
            remote_block_ids=[hand_off.block_ids],
            remote_num_tokens=len(request.prompt_token_ids) + len(request.output_token_ids),
            tp_size=identity.num_ranks,
            lease_id=hand_off.lease_id,
            block_versions=hand_off.versions,
            first_token=job.transcript.tokens[-1],
            first_logprobs=first_logprobs,
            prompt_token_ids=request.prompt_token_ids,
            seed=request.sampling.seed,
            created=job.created,
            num_cached_tokens=job.transcript.usage.num_cached_tokens,
            output_token_ids=request.output_token_ids,
        )

    @contextlib.contextmanager
    def _held(self, lease_id: str, client: Client) -> Iterator[None]:
        """Drop the lease unless the answer that names it went out to a client that was still there.

        Whether it arrived is not known here: a router that has not read it says so (``/internal/abort``), and when a
        router has died the others say that (``/internal/routers/{id}/gone``). Otherwise the lease expires.
        """
        delivered = False
        try:
            yield
            delivered = not client.gone
        finally:
            if not delivered:
                self._leases.drop(lease_id)


def _take_now(outputs: TokenStream) -> TokenOutput | None:
    """The next output if it is there already: one step of the coroutine, which either returns it or would wait."""
    step = outputs.__anext__()
    try:
        step.send(None)
    except StopIteration as done:
        output: TokenOutput = done.value
        return output
    except (EngineError, StopAsyncIteration):
        return None
    step.close()
    return None


def _events(job: Job, output: TokenOutput) -> bytes:
    """What one more token adds to the stream. What ends it goes together, the last text too: it is as good as nothing
    to somebody who has to go on elsewhere, since after the last token there is nothing to go on with.
    """
    data, transcript, lines = _chunk(job, output), job.transcript, job.token_ids
    if transcript.finish_reason is not None:
        data += job.reply.closing(transcript.finish_reason, transcript.usage)
        return data if lines is None else END + data
    return data if lines is None or not data else lines.next_line() + data


def _chunk(job: Job, output: TokenOutput) -> bytes:
    """One more token as a chunk; empty while its text is held back. Its logprobs wait for the text, a few of them.

    Who goes on after tokens that were told without their text holds it back as well, and shows it when it is time.
    """
    transcript = job.transcript
    text = transcript.add(output)
    if text:
        return job.reply.text(text, transcript.take_logprobs())
    if transcript.finish_reason is not None or transcript.has_logprobs_due:
        logprobs = transcript.take_logprobs()
        if logprobs is not None and any(logprobs.values()):  # tokens that never became text
            return job.reply.text("", logprobs)
    return b""


def _sign_of_life(job: Job) -> bytes:
    """Tokens without text. With logprobs they are not named: another worker could not tell the client theirs."""
    if job.token_ids is None or job.request.num_logprobs is not None:
        return SIGN_OF_LIFE
    return job.token_ids.next_line() + b"\n"


def _opening(job: Job) -> bytes:
    """The client of a continued stream has seen the beginning."""
    return b"" if job.leg.has_begun else job.reply.opening()
