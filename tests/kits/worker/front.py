"""A front on real sockets over an engine whose tokens are written down in the test.

``ScriptedEngine`` has the engine's semantics as the front sees them: streams that abort when closed, hand-offs that
pin until ``end_lease``, errors by type. It does not compute anything.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import httpx
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

from baton_serve.core.leases.store import LeaseState
from baton_serve.core.net.served.config import PortConfig
from baton_serve.core.net.served.port import HttpPort
from baton_serve.core.net.sockets import bind, port_of
from baton_serve.core.protocol.openai.structured import Form
from baton_serve.core.protocol.steps import PromptScores
from baton_serve.core.protocol.worker import AdapterRecord, WorkerLoad
from baton_serve.workers.app import create_internal_app, create_public_app
from baton_serve.workers.engine.api import (
    AbortedError,
    DrainingError,
    EngineError,
    EngineRequest,
    FinishReason,
    HandOff,
    PromptOutput,
    TokenOutput,
    TokenStream,
)
from baton_serve.workers.engine.blocks.block_pool import PoolStats
from baton_serve.workers.engine.blocks.lease_index import Grant, LeaseIndex
from baton_serve.workers.engine.counters import Counters, EngineStats
from baton_serve.workers.grammar.rank_grammars import HeldGrammar
from baton_serve.workers.leases.engine_leases import EngineLeases
from baton_serve.workers.leases.keeper import LeaseKeeper
from baton_serve.workers.parsers.message_format import MessageFormat
from baton_serve.workers.server.access import Access
from baton_serve.workers.server.identity import Identity
from baton_serve.workers.server.metrics import WorkerMetrics
from baton_serve.workers.server.pages.internal import internal_pages
from baton_serve.workers.server.pages.public import WorkerHealth
from baton_serve.workers.settings import WorkerSettings
from baton_serve.workers.text.chat_template import PLAIN, ChatOptions
from baton_serve.workers.text.content_forms import ContentForms
from baton_serve.workers.text.sampling_defaults import SamplingDefaults
from baton_serve.workers.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from baton_serve.workers.server.answers.job import HoldGrammar

EOS = 1
MODEL = "relay"
ADAPTER = AdapterRecord(name="relay-sql", root="/adapters/sql", fingerprint="ad" * 16)
SECRET = "s3cret-internal"
NO_DEFAULTS = SamplingDefaults()
MAX_MODEL_LEN = 200
TEXT = "The runner holds the baton until the other one has it. \u4e2d\u6587 \u20ac\u20ac"


@functools.cache
def fast_tokenizer() -> FastTokenizer:
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    fast.train_from_iterator(["the runner holds the baton until the other one has it"] * 3, trainer)
    return fast


def render(conversation: list[dict[str, Any]], options: ChatOptions = PLAIN) -> str:
    from jinja2 import TemplateError

    if conversation[0]["role"] == "assistant":
        raise TemplateError("the first message must not be the assistant's")
    offered = "".join(f"[{tool['function']['name']}] is a tool\n" for tool in options.tools or ())
    told = "".join(f"[{name}] {value}\n" for name, value in options.variables.items())
    said = ContentForms(frozenset(), shows_users=True).of(conversation)
    return offered + told + "".join(f"[{message['role']}] {message['content']}\n" for message in said)


def tokens_of(text: str) -> list[int]:
    ids: list[int] = fast_tokenizer().encode(text).ids
    return ids


def text_of(tokens: list[int]) -> str:
    text: str = fast_tokenizer().decode(tokens)
    return text


#: Tokens of a prompt that the scripted engine scores at a time.
CHUNK = 5


def scores_of(prompt: list[int], start: int, end: int, num_top: int) -> PromptScores:
    """Made-up scores: the one of token ``i`` is ``-i``, and it is the most likely one if ``i`` is even."""
    places = range(start, end)
    tops = [[prompt[i], 5, 6][:num_top] if i % 2 == 0 else [5, 6, 7][:num_top] for i in places]
    values = [[-float(i), -float(i) - 1, float("-inf")][: len(top)] for i, top in zip(places, tops, strict=True)]
    return PromptScores(1, start, [-float(i) for i in places], [i % 2 * 8 + 1 for i in places], tops, values)


class ScriptedEngine:
    """Gives every request the tokens of ``script``, one for each turn of ``gate``, after those that it comes with."""

    def __init__(self, script: list[int] | None = None) -> None:
        self.script = [*tokens_of(TEXT), EOS] if script is None else script
        self.gate: asyncio.Semaphore | None = None
        self.error: EngineError | None = None
        self.error_after = 0
        self.requests: list[EngineRequest] = []
        self.running: dict[str, asyncio.Task[None]] = {}
        self.leases = LeaseIndex()
        self.on_lease_end: Callable[[str, LeaseState], object] | None = None
        #: As many tokens fit into the context, prompt included.
        self.max_total_tokens = MAX_MODEL_LEN
        self.aborted: list[str] = []
        self.draining = self.leaving = False
        self.changed = asyncio.Event()
        self._streams: dict[str, TokenStream] = {}
        self._num_leases = 0

    def submit(self, request: EngineRequest) -> TokenStream:
        self.requests.append(request)
        if self.draining:
            return TokenStream.refused(DrainingError("draining"))
        stream = TokenStream(lambda: self.abort(request.request_id) and None)
        self.abort(request.request_id)
        self._streams[request.request_id] = stream
        self.running[request.request_id] = asyncio.create_task(self._run(request, stream))
        self._tell()
        return stream

    async def _run(self, request: EngineRequest, stream: TokenStream) -> None:
        skip = len(request.output_token_ids)
        skip += request.remote is not None and request.remote.first_token >= 0
        await self._score(request, stream)
        if request.max_tokens == 0:
            self.running.pop(request.request_id)
            self._tell()
            stream.put(PromptOutput(finish=FinishReason.LENGTH, num_cached_tokens=3))
            return
        for count, token in enumerate(self.script[skip:], start=skip + 1):
            if self.gate is not None:
                await self.gate.acquire()
            else:
                await asyncio.sleep(0)
            if self.error is not None and count > self.error_after:
                self.running.pop(request.request_id)
                stream.put(self.error)
                return
            output = self._output(request, token, count)
            if output.finish is not None:
                self.running.pop(request.request_id)
                self._tell()
            stream.put(output)
            if output.finish is not None:
                return

    async def _score(self, request: EngineRequest, stream: TokenStream) -> None:
        prompt, num_top = request.prompt_token_ids, request.sampling.num_prompt_logprobs
        if num_top is None:
            return
        for start in range(1, len(prompt), CHUNK):
            if self.gate is not None:
                await self.gate.acquire()
            stream.put(PromptOutput(scores_of(prompt, start, min(start + CHUNK, len(prompt)), num_top)))

    def _output(self, request: EngineRequest, token: int, count: int) -> TokenOutput:
        finish = hand_off = None
        if token in request.stop_token_ids:
            finish = FinishReason.STOP
            if request.hand_off and request.num_readers > 1:
                hand_off = self._hand_off(request)
        elif count >= request.max_tokens or count >= len(self.script):
            finish = FinishReason.LENGTH
            if request.hand_off and len(request.prompt_token_ids) + count < self.max_total_tokens:
                hand_off = self._hand_off(request)
        wanted = request.sampling.num_logprobs
        return TokenOutput(
            token=token,
            logprob=None if wanted is None else -0.25,
            top=None if wanted is None else [(token, -0.25), (5, float("-inf"))][:wanted],
            finish=finish,
            hand_off=hand_off,
            num_cached_tokens=3 if count == 1 else 0,
        )

    def _hand_off(self, request: EngineRequest) -> HandOff:
        hand_off = HandOff(f"lease-{self._num_leases}", [7, 9], 2**64 - 1)
        self._num_leases += 1
        self.lease(hand_off.lease_id, request.request_id, request.num_readers)
        return hand_off

    def abort(self, request_id: str) -> bool:
        task = self.running.pop(request_id, None)
        if task is None:
            return False
        task.cancel()
        self.aborted.append(request_id)
        self._streams[request_id].put(AbortedError(f"request {request_id} was aborted"))
        self._tell()
        return True

    def abort_all(self, suffix: str) -> int:
        return sum(self.abort(request_id) for request_id in [*self.running] if request_id.endswith(suffix))

    def end_lease(self, lease_id: str, how: LeaseState) -> bool:
        there = self.leases.remove(lease_id) is not None
        if self.on_lease_end is not None:
            self.on_lease_end(lease_id, how)
        self._tell()
        return there

    def note_read(self, name: str) -> None:
        lease_id = self.leases.note_read(name)
        if lease_id is not None:
            self.end_lease(lease_id, LeaseState.DONE)

    def lease(self, lease_id: str, request_id: str, num_readers: int = 1) -> None:
        self.leases.add(lease_id, Grant(request_id, num_readers=num_readers))

    def forget_leases(self) -> None:
        self.leases = LeaseIndex()

    @property
    def held(self) -> dict[str, str]:
        """By id, the request each lease was granted for."""
        return {lease_id: grant.request_id for lease_id, grant in self.leases._by_lease.items()}

    def load(self) -> WorkerLoad:
        return WorkerLoad(running=len(self.running), leases=len(self.leases), draining=self.draining)

    def stats(self) -> EngineStats:
        leased = 2 * len(self.leases)
        return EngineStats(Counters(read_bytes=4096), PoolStats(10, 10 - leased, 0, 0, leased, 1), self.load())

    def audit(self) -> Callable[[], None]:
        return lambda: None

    def begin_drain(self) -> None:
        self.draining = True

    def resume(self) -> bool:
        """As a whole worker does it."""
        if self.leaving:
            return False
        self.draining = False
        return True

    async def until_idle(self) -> None:
        """Nothing runs and nothing is leased."""
        while self.running or len(self.leases):
            self.changed.clear()
            await self.changed.wait()

    async def until_running(self) -> None:
        while not self.running:
            self.changed.clear()
            await self.changed.wait()

    def _tell(self) -> None:
        self.changed.set()


class RecordingLeases(EngineLeases):
    """Without a keeper."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.granted: list[str] = []
        self.dropped: list[str] = []
        super().__init__(cast("LeaseKeeper", SimpleNamespace(grant=self.granted.append)), engine)

    def drop(self, lease_id: str) -> None:
        self.dropped.append(lease_id)
        super().drop(lease_id)


async def no_forms(form: Form, client: str) -> HeldGrammar:
    raise AssertionError(f"no answer was to have a form, but {form} is asked for")


@dataclass
class Front:
    """Everything a test wants to look at."""

    engine: ScriptedEngine
    leases: RecordingLeases
    identity: Identity
    health: WorkerHealth
    http: httpx.AsyncClient
    internal: httpx.AsyncClient
    port: int


@contextlib.asynccontextmanager
async def front(
    script: list[int] | None = None,
    *,
    token: str | None = None,
    max_body_bytes: int = 2**20,
    max_messages: int = 2048,
    message_format: MessageFormat | None = None,
    chat_template: str = "",
    hold_grammar: HoldGrammar = no_forms,
    defaults: SamplingDefaults = NO_DEFAULTS,
) -> AsyncIterator[Front]:
    """A worker's two ports on loopback."""
    engine = ScriptedEngine(script)
    leases = RecordingLeases(engine)
    fast = fast_tokenizer()
    tokenizer = Tokenizer(
        fast,
        render,
        eos_token_ids=frozenset({EOS}),
        special_ids=frozenset({0, 1}),
        chat_template=chat_template,
        message_format=message_format,
    )
    settings = WorkerSettings(
        model=MODEL, internal_token=token, max_body_bytes=max_body_bytes, max_messages=max_messages
    )
    access = Access(settings.internal_token)
    health = WorkerHealth(engine.load)
    bound, internal_bound = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
    identity = Identity(
        engine_id="e" * 32,
        root="/models/x",
        model=MODEL,
        created=1,
        weights="test",
        vocab_size=fast.get_vocab_size(),
        max_model_len=MAX_MODEL_LEN,
        internal_host="127.0.0.1",
        internal_port=port_of(internal_bound),
        adapters={ADAPTER.name: ADAPTER},
        defaults=defaults,
    )
    public, calls = create_public_app(
        settings,
        engine=engine,
        leases=leases,
        tokenizer=tokenizer,
        identity=identity,
        access=access,
        health=health,
        metrics=WorkerMetrics(engine.stats, lambda: {"done": 1}, model=MODEL),
        load=engine.load,
        hold_grammar=hold_grammar,
    )
    internal = create_internal_app(
        internal_pages(engine, leases, access, health, engine.begin_drain, engine.resume, engine.load)
    )
    config = PortConfig(keep_alive_s=300)
    ports = [HttpPort(public, bound, config, calls=calls), HttpPort(internal, internal_bound, config)]
    for port in ports:
        await port.start()
    url, internal_url = (f"http://127.0.0.1:{port_of(one)}" for one in (bound, internal_bound))
    async with httpx.AsyncClient(base_url=url) as http, httpx.AsyncClient(base_url=internal_url) as inner:
        yield Front(engine, leases, identity, health, http, inner, port_of(bound))
    await asyncio.gather(*(port.stop(1.0) for port in ports))
    tokenizer.close()


def chat(content: str = "hello", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": content}], **more}


def completion(prompt: Any = "hello", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": prompt, **more}
