"""Runs jobs on the engine and answers them.

By ``kv_transfer_params`` a request is one of three legs:

plain    this worker computes the whole answer
prefill  P computes one token and pins the blocks under a lease; the answer says how to read them
decode   D reads the blocks from P and continues after P's first token

Each of them may continue a stream that another worker has begun (migration).

The response headers are sent with the first output of the engine, so that an earlier error has its own status. If the
client disconnects, the request is cancelled: the engine's stream is closed and the blocks are freed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from baton_serve.core.process.failpoints import hit
from baton_serve.core.protocol.handoff import KVTransferParams
from baton_serve.core.protocol.openai.json_body import BodyLimits, parse_body
from baton_serve.core.protocol.openai.requests import R
from baton_serve.workers.engine.api import (
    AbortedError,
    Engine,
    EngineError,
    HandOff,
    PromptOutput,
    TokenOutput,
    TokenStream,
)
from baton_serve.workers.leases.engine_leases import EngineLeases
from baton_serve.workers.parsers.message_parser import MessageDelta, joined
from baton_serve.workers.server.answers.engine_errors import to_api_error
from baton_serve.workers.server.answers.job import Job, JobFactory
from baton_serve.workers.server.answers.token_ids import END, KEEP_ALIVE, MAX_SILENCE_S, NONE
from baton_serve.workers.server.answers.turns import in_turns
from baton_serve.workers.server.client import Client
from baton_serve.workers.server.identity import Identity
from baton_serve.workers.server.metrics import WorkerMetrics

if TYPE_CHECKING:
    from baton_serve.workers.server.calls import Asked, Endpoint


class Serving:
    """Runs jobs, each for one client."""

    def __init__(
        self,
        engine: Engine,
        leases: EngineLeases,
        identity: Identity,
        metrics: WorkerMetrics,
        on_change: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._leases = leases
        self._identity = identity
        self._metrics = metrics
        self._on_change = on_change

    def endpoint(self, kind: type[R], jobs: JobFactory, limits: BodyLimits) -> Endpoint:
        """What answers the bodies of one ``kind``."""

        async def answer(raw: bytes, client: Client, asked: Asked) -> None:
            body = parse_body(raw, limits)
            limits.check_stop(body)
            job = await jobs.make(kind, body, asked)
            try:
                await self.answer(job, client)
            finally:
                job.release()

        return answer

    async def answer(self, job: Job, client: Client) -> None:
        """Run ``job`` to its end. Raises ApiError, maybe after the answer has begun (``client.started``)."""
        self._on_change()
        try:
            if job.leg.hand_off:
                await self._hand_off(job, client)
            elif job.request.stream:
                await self._stream(job, client)
            else:
                await self._whole(job, client)
        except EngineError as error:
            raise to_api_error(error, job.form) from error
        finally:
            self._metrics.observe(job.transcript)
            self._on_change()

    def _submit(self, job: Job) -> TokenStream:
        """Submit the job. The new request replaces an older one with the same id, whose answer the router no longer
        reads: the engine aborts the older sequence, and its leases are dropped, except the one that the job reads.

        The leases are dropped at once, because the new request may need their blocks. A refused request drops none.
        """
        outputs = self._engine.submit(job.engine_request)
        if not outputs.is_refused:
            remote = job.leg.remote
            self._leases.drop_older(job.engine_request.request_id, "" if remote is None else remote.lease_id)
        return outputs

    async def _stream(self, job: Job, client: Client) -> None:
        async with contextlib.aclosing(self._submit(job)) as outputs:
            clock = asyncio.get_running_loop().time
            last_s = clock()
            async for output in outputs:
                if isinstance(output, PromptOutput):
                    await _add_prompt(job, output)
                    if output.finish is None:
                        continue
                opening = b"" if client.started else _opening(job)
                data = _events(job, output)
                if not data and clock() - last_s >= MAX_SILENCE_S:
                    data = _keep_alive(job)
                if job.transcript.finish_reason is not None:
                    client.send_last(opening + data)
                    return
                if data or not client.started:
                    await client.send_part(opening + data)
                    last_s = clock()
        raise AbortedError("the engine ended the sequence early")

    async def _whole(self, job: Job, client: Client) -> None:
        texts, parts = [job.first_text], [job.read(job.first_text, ended=False)]
        async with contextlib.aclosing(self._submit(job)) as outputs:
            async for output in outputs:
                if isinstance(output, PromptOutput):
                    text = ""
                    await _add_prompt(job, output)
                else:
                    text = job.transcript.add(output)
                ended = job.transcript.finish_reason is not None
                texts.append(text)
                if job.reader is not None:
                    parts.append(job.read(text, ended=ended))
                if ended:
                    break
        self._send_whole(job, client, "".join(texts), joined(parts))

    async def _hand_off(self, job: Job, client: Client) -> None:
        async with contextlib.aclosing(self._submit(job)) as outputs:
            output = await self._only(outputs)
            if output is None:
                raise AbortedError("the engine ended the sequence early")
            text = job.transcript.add(output)
            is_over = job.transcript.finish_reason == "stop"
            if output.hand_off is None or (is_over and job.leg.num_readers == 1):
                if output.hand_off is not None:  # a stop string in the first token: no D will come
                    self._leases.drop(output.hand_off.lease_id)
                self._send_whole(job, client, text, job.read(text, ended=True))
                return
            lease_id = output.hand_off.lease_id
            with self._held(lease_id, client):
                hit("worker.grant.before")
                if not self._leases.grant(lease_id):
                    raise AbortedError("the request was aborted when its blocks were about to be handed over")
                hit("worker.grant.after")
                if is_over:  # only the other choices read
                    self._leases.note_read(lease_id)
                self._send_whole(job, client, text, job.read(text, ended=is_over), output.hand_off)

    async def _only(self, outputs: TokenStream) -> TokenOutput | None:
        """The only token of a hand-off; its lease is dropped if a cancellation comes in the same turn of the loop."""
        try:
            only = await anext(outputs, None)
            return only if isinstance(only, TokenOutput) else None
        except asyncio.CancelledError:
            output = _take_now(outputs)
            if output is not None and output.hand_off is not None:
                self._leases.drop(output.hand_off.lease_id)
            raise

    def _send_whole(
        self, job: Job, client: Client, text: str, parts: MessageDelta, hand_off: HandOff | None = None
    ) -> None:
        transcript = job.transcript
        if transcript.finish_reason is None:
            raise AbortedError("the engine ended the sequence early")
        logprobs = transcript.take_logprobs()
        params = None if hand_off is None else self._params(job, hand_off, logprobs)
        tokens = transcript.tokens[transcript.num_given :] if job.request.return_token_ids else None
        message = None
        if job.reader is not None:
            # The router makes a chunk of it. An answer that goes on here may be in the middle of a call.
            body_of = job.reader.part_body if job.leg.hand_off else job.reader.message_body
            message = body_of(parts)
        body = job.response.whole(
            text,
            job.finish_reason,
            logprobs,
            job.usage,
            params,
            tokens,
            transcript.stop_reason,
            message,
            None if job.shown_prompt is None else job.shown_prompt.entries,
        )
        client.send_json(200, body)

    def _params(self, job: Job, hand_off: HandOff, first_logprobs: dict[str, Any] | None) -> KVTransferParams:
        """What D needs to read the blocks and to continue after the first token."""
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
            promise=hand_off.promise,
            first_token=job.transcript.tokens[-1],
            first_logprobs=first_logprobs,
            prompt_token_ids=request.prompt_token_ids,
            seed=request.sampling.seed,
            created=job.created,
            num_cached_tokens=job.transcript.usage.num_cached_tokens,
            output_token_ids=request.output_token_ids,
            adapter=request.adapter,
        )

    @contextlib.contextmanager
    def _held(self, lease_id: str, client: Client) -> Iterator[None]:
        """Drop the lease unless the answer with the lease's id was sent while the client was connected.

        Whether the answer arrived is unknown here. A router that has not read the answer aborts the request
        (``/internal/abort``); if that router has died, another one reports its death
        (``/internal/routers/{id}/gone``). If neither happens, the lease expires.
        """
        delivered = False
        try:
            yield
            delivered = not client.gone
        finally:
            if not delivered:
                self._leases.drop(lease_id)


def _take_now(outputs: TokenStream) -> TokenOutput | None:
    """The next output if it is queued already, else None. Never waits: it runs only one step of the coroutine."""
    step = outputs.__anext__()
    try:
        step.send(None)
    except StopIteration as done:
        return done.value if isinstance(done.value, TokenOutput) else None
    except (EngineError, StopAsyncIteration):
        return None
    step.close()
    return None


def _events(job: Job, output: TokenOutput | PromptOutput) -> bytes:
    """The bytes that one more token adds to the stream, or the end of an answer without any.

    The last text and the end of the answer are sent together, because no other worker could continue after the last
    token.
    """
    data = b"" if isinstance(output, PromptOutput) else _chunk(job, output)
    transcript, lines = job.transcript, job.token_ids
    if transcript.finish_reason is not None:
        reasons = job.finish_reason, job.usage, transcript.stop_reason
        data += job.response.closing(*reasons, _new_tokens(job))
        return data if lines is None else END + data
    return data if lines is None or not data else lines.next_line() + data


def _chunk(job: Job, output: TokenOutput) -> bytes:
    """The chunk for one more token, empty while the token's text is held back. Its logprobs wait for that text.

    If another worker continues the stream then, it holds the same text back and sends it later.
    """
    transcript = job.transcript
    text = transcript.add(output)
    if job.reader is not None:
        delta = job.read(text, ended=transcript.finish_reason is not None)
        if delta:
            return _text(job, "", transcript.take_logprobs(), job.reader.delta_body(delta))
    elif text:
        return _text(job, text, transcript.take_logprobs())
    if transcript.finish_reason is not None or transcript.has_logprobs_due:
        logprobs = transcript.take_logprobs()
        if logprobs is not None and any(logprobs.values()):  # tokens that never became text
            return _text(job, "", logprobs)
    return b""


def _text(job: Job, text: str, logprobs: dict[str, Any] | None, delta: dict[str, Any] | None = None) -> bytes:
    usage = job.transcript.usage if job.response.shown.usage_in_chunks else None
    return job.response.text(text, logprobs, _new_tokens(job), usage, delta)


def _new_tokens(job: Job) -> list[int] | None:
    """The tokens since the last chunk, if the client wants their ids."""
    return job.transcript.take_tokens() if job.request.return_token_ids else None


def _keep_alive(job: Job) -> bytes:
    """The SSE comment that is sent while tokens have no text yet.

    The comment has the token ids for a migration, but not if the client wants logprobs or ids: a worker that continues
    after these tokens could not send them.
    """
    if job.token_ids is None or job.request.num_logprobs is not None or job.request.return_token_ids:
        return KEEP_ALIVE
    return job.token_ids.next_line() + b"\n"


def _opening(job: Job) -> bytes:
    """The first chunks of the stream; empty if the client has received them from another worker."""
    if job.leg.has_begun:
        return b""
    return job.response.opening(job.transcript.usage) + _prompt_chunks(job)


async def _add_prompt(job: Job, output: PromptOutput) -> None:
    """Add to the answer what the engine has found out about the prompt."""
    if output.scores is not None and job.shown_prompt is not None:
        async for _ in in_turns(job.shown_prompt.add(output.scores)):
            pass  # each step adds a token
    job.transcript.end_with_prompt(output)


def _prompt_chunks(job: Job) -> bytes:
    """The chunks of a stream that begins with the prompt. No token of the output is named before them."""
    if job.shown_prompt is None:
        return b""
    line = b"" if job.token_ids is None else NONE
    usage, with_ids = job.transcript.usage, job.request.return_token_ids
    return b"".join(
        line + job.response.prompt(text, logprobs, usage, with_ids=with_ids)
        for text, logprobs in job.shown_prompt.parts()
    )
