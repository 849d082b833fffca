"""One worker, assembled: ranks, engine, leases, handshakes, two HTTP ports, the registry entry.

``start`` builds, in this order: the ranks, which load the model, and the tokenizer at the same time; the engine; the
lease threads; the two ports; and last the registry entry, because from then on routers send requests.
``stop`` ends, in this order:

1. the registry entry, so that no new requests come
2. the leases: routers see their ends and prefill elsewhere at once, instead of renewing leases of a stopping worker
3. the engine: requests that still run get an error
4. the ports, after the engine so that those errors are still sent
5. handshakes, ranks and stores, which nothing uses any more
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict

from baton_serve.core.leases.ids import new_id
from baton_serve.core.leases.store import LeaseStore
from baton_serve.core.net.served.config import internal_port, public_port
from baton_serve.core.net.served.port import HttpPort
from baton_serve.core.net.sockets import base_url, port_of
from baton_serve.core.net.tls import internal_tls
from baton_serve.core.process.version import version
from baton_serve.core.protocol.status import Progress as ProgressStatus
from baton_serve.core.protocol.steps import FromRank, Progress, RankReady
from baton_serve.core.protocol.worker import AdapterRecord, WorkerLoad, WorkerRecord, WorkerStatus
from baton_serve.core.registry.announcer import Announcer
from baton_serve.core.registry.store import Registry
from baton_serve.workers.app import create_internal_app, create_public_app, guarded, local_hosts
from baton_serve.workers.engine.engine import AsyncEngine
from baton_serve.workers.engine.ports import EngineHooks
from baton_serve.workers.engine_setup import engine_config, rank_spec, with_text_fingerprint
from baton_serve.workers.grammar.compiler import GrammarCompiler
from baton_serve.workers.grammar.rank_grammars import RankGrammars
from baton_serve.workers.grammar.trial.process import Turns
from baton_serve.workers.handshake.peer_view import with_peers
from baton_serve.workers.handshake.pool import HandshakeOptions, HandshakePool
from baton_serve.workers.handshake.server import handshake_bytes, handshake_router
from baton_serve.workers.leases.engine_leases import EngineLeases
from baton_serve.workers.leases.keeper import LeaseKeeper
from baton_serve.workers.rank_group.group import RankGroup
from baton_serve.workers.rank_group.rank_facade import RankFacade
from baton_serve.workers.rank_protocol.errors import RankDeadError, RankStartError
from baton_serve.workers.server.access import Access
from baton_serve.workers.server.identity import Identity
from baton_serve.workers.server.metrics import WorkerMetrics
from baton_serve.workers.server.pages.internal import hello_pages, internal_pages
from baton_serve.workers.server.pages.public import WorkerHealth
from baton_serve.workers.settings import ANNOUNCE_INTERVAL_MS, WorkerSettings
from baton_serve.workers.text import sampling_defaults
from baton_serve.workers.text import tokenizer as tokenizers
from baton_serve.workers.text.sampling_defaults import SamplingDefaults
from baton_serve.workers.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

#: Seconds that the ports wait for the last answers to be sent before they close.
PORT_GRACE_S = 2.0
#: Seconds that an idle connection stays open: longer than clients keep one in their pools, so that no client sends a
#: request on a connection that is just being closed.
KEEP_ALIVE_S = 300


class WorkerProcess:
    """Call ``start``, await ``failed`` or ``drain``, then call ``stop`` (also after a ``start`` that raised)."""

    def __init__(
        self,
        settings: WorkerSettings,
        sockets: tuple[socket.socket, socket.socket],
        leases: LeaseStore,
        registry: Registry[WorkerStatus],
        tell: Callable[[ProgressStatus], None],
    ) -> None:
        """Raises TlsError."""
        self._settings = settings
        self._bound, self._internal_bound = sockets
        self._lease_store = leases
        self._registry = registry
        self._tell = tell
        self._tls = internal_tls(settings)
        #: The id in the registry and of the engine, new at every start.
        self.worker_id = new_id()
        self._leaving = False
        self._parts = AsyncExitStack()
        # ``start`` builds these parts. The first two are None until then, because a rank may die earlier.
        self._ranks: RankFacade | None = None
        self._health: WorkerHealth | None = None
        self._defaults: SamplingDefaults
        self._engine: AsyncEngine
        self._pool: HandshakePool
        self._keeper: LeaseKeeper
        self._leases: EngineLeases
        self._metrics: WorkerMetrics
        self._announcer: Announcer[WorkerStatus]
        #: A future that gets the reason when the worker cannot continue.
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def url(self) -> str:
        """Base URL of the public port for routers."""
        settings = self._settings
        return base_url(settings.advertised(settings.host), port_of(self._bound), tls=settings.speaks_internal_tls)

    @property
    def internal_url(self) -> str:
        """Base URL of the internal port for routers and other workers."""
        settings = self._settings
        host = settings.advertised(settings.bound_internal_host)
        return base_url(host, port_of(self._internal_bound), tls=settings.speaks_internal_tls)

    async def start(self) -> None:
        """Load the model and serve. Raises RankStartError, TokenizerError, ModelFileError; ``stop`` then cleans up."""
        self._defaults = await self._load_defaults()
        ranks, tokenizer = await self._load()
        weights = ranks.readies[0].compatibility.weights_fingerprint
        defaults = self._defaults.given
        readies = [with_text_fingerprint(ready, tokenizer.fingerprint, defaults) for ready in ranks.readies]
        logger.info(
            "fingerprint of the weights alone %s, of the tokenizer %s, of all that decides tokens %s",
            weights,
            tokenizer.fingerprint,
            readies[0].compatibility.weights_fingerprint,
        )
        engine = self._build_engine(ranks, readies[0])
        grammars = self._build_grammars(ranks, readies[0], tokenizer)
        public, internal = self._build_ports(engine, readies, tokenizer, grammars)
        # The part that is pushed last is stopped first.
        self._parts.push_async_callback(_stop_ports, public, internal)
        self._parts.push_async_callback(engine.close)
        self._keeper.start()
        self._parts.push_async_callback(self._keeper.stop)
        await internal.start()
        await public.start()
        await self._announcer.start()
        self._parts.push_async_callback(self._announcer.stop)

    async def drain(self) -> None:
        """Refuse new requests from now on, even if this is cancelled; return when no sequence and no lease is left."""
        self._leaving = True
        self._begin_drain()
        await self._engine.drain()

    async def stop(self) -> None:
        """Stop in the documented order. Safe after a failed start."""
        await self._parts.aclose()

    def _begin_drain(self) -> None:
        self._engine.begin_drain()
        self._announcer.changed()

    def _end_drain(self) -> bool:
        """Accept requests again and announce it. Returns False, and changes nothing, if the process is about to end."""
        if self._leaving:
            return False
        self._engine.end_drain()
        self._announcer.changed()
        return True

    async def _load_defaults(self) -> SamplingDefaults:
        settings = self._settings
        source = settings.generation_config, settings.model, settings.revision
        defaults = await asyncio.to_thread(sampling_defaults.load, *source)
        if defaults.given:
            told = ", ".join(f"{name} {value:g}" for name, value in defaults.given.items())
            logger.info("requests that do not say otherwise get what the model's makers recommend: %s", told)
        return defaults

    async def _load(self) -> tuple[RankGroup, Tokenizer]:
        """Start the ranks and load the tokenizer at the same time; if one of them fails, the other is cancelled."""
        settings = self._settings
        spec = rank_spec(settings, self.worker_id)
        ranks = asyncio.create_task(RankGroup.start(spec, self._on_rank_message, self._on_death), name="start ranks")
        parsers = (settings.tool_call_parser, settings.reasoning_parser, settings.generation_config)
        text = asyncio.create_task(
            asyncio.to_thread(tokenizers.load, settings.model, settings.revision, *parsers), name="load"
        )
        try:
            await asyncio.wait({ranks, text}, timeout=settings.start_timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            if not ranks.done():
                ranks.cancel()
            text.cancel()
            await asyncio.gather(ranks, text, return_exceptions=True)
            if not ranks.cancelled() and ranks.exception() is None:
                self._parts.push_async_callback(self._stop_ranks, ranks.result())
        for task in (text, ranks):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if ranks.cancelled() or text.cancelled():
            raise RankStartError(f"the model was not loaded after start_timeout_s = {settings.start_timeout_s:g} s")
        self._parts.callback(text.result().close)
        return ranks.result(), text.result()

    async def _stop_ranks(self, ranks: RankGroup) -> None:
        """Stop the ranks. Those of a dead engine may hang, so they are killed first."""
        if self.failed.done():
            ranks.kill()
        await ranks.stop()

    def _build_engine(self, ranks: RankGroup, ready: RankReady) -> AsyncEngine:
        settings, token = self._settings, self._settings.internal_token
        self._pool = pool = HandshakePool(
            ranks.send,
            local=ranks.metadata,
            token=None if token is None else token.get_secret_value(),
            compatibility_hash=ready.compatibility.hash,
            tls=self._tls,
            options=HandshakeOptions(timeout_s=settings.handshake_timeout_s),
        )
        self._parts.push_async_callback(pool.close)
        self._keeper = keeper = LeaseKeeper(
            self._lease_store,
            self.worker_id,
            on_end=lambda lease_id, how: self._engine.end_lease(lease_id, how),
            on_failed=lambda error: self._engine.dead(f"leases cannot be kept: {error!r}"),
            duration_ms=settings.lease_duration_ms,
            redis_grace_ms=settings.redis_grace_ms,
        )
        load_seconds = {"weights": ready.load_s, "fingerprint": ready.fingerprint_s}
        look = lambda: asdict(keeper.stats), pool.stats, load_seconds
        self._metrics = WorkerMetrics(lambda: self._engine.stats(), *look, settings.model_name)
        hooks = EngineHooks(
            on_lease_end=keeper.tell,
            on_pressure=self._give_up_lease,
            on_dead=self._fail,
            on_step=self._metrics.on_step,
            on_read=self._metrics.on_read,
        )
        self._ranks = facade = RankFacade(ranks.send, pool, ranks.num_ranks)
        self._engine = AsyncEngine(engine_config(settings, ready), facade, pool, hooks)
        facade.on_event = self._engine.on_rank_event
        self._leases = EngineLeases(keeper, self._engine)
        return self._engine

    def _build_grammars(self, ranks: RankGroup, ready: RankReady, tokenizer: Tokenizer) -> GrammarCompiler:
        on_ranks, trial = RankGrammars(ranks.send, ranks.num_ranks), Turns(ready.vocab_size)
        grammars = GrammarCompiler(ranks.send, on_ranks, trial, tokenizer.to_json, tokenizer.eos_token_ids)
        self._parts.push_async_callback(grammars.close)
        assert self._ranks is not None  # the engine was built
        self._ranks.on_compiled = on_ranks.on_compiled
        return grammars

    def _build_ports(
        self, engine: AsyncEngine, readies: list[RankReady], tokenizer: Tokenizer, grammars: GrammarCompiler
    ) -> tuple[HttpPort, HttpPort]:
        settings, ready = self._settings, readies[0]
        access = Access(settings.internal_token)
        self._health = WorkerHealth(engine.load)
        most = engine_config(settings, ready).max_total_tokens
        if most < ready.max_model_len:
            logger.warning(
                "a prompt and its answer may have %d tokens, as many as fit into the cache, though the model takes %d: "
                "raise --num-blocks for more",
                most,
                ready.max_model_len,
            )
        identity = self._identity(ready, most)
        record = self._record(ready, identity)
        self._announcer = Announcer(
            self._registry,
            record.worker_id,
            lambda: WorkerStatus(record=record, load=self._tell_load()),
            interval_ms=ANNOUNCE_INTERVAL_MS,
            ttl_ms=settings.registry_ttl_ms,
            who="worker",
        )
        public, calls = create_public_app(
            settings,
            engine=engine,
            leases=self._leases,
            tokenizer=tokenizer,
            identity=identity,
            access=access,
            health=self._health,
            metrics=self._metrics,
            load=self._tell_load,
            hold_grammar=grammars.hold,
            on_change=self._announcer.changed,
        )
        token = settings.internal_token
        pages = internal_pages(
            engine,
            self._leases,
            access,
            self._health,
            drain=self._begin_drain,
            resume=self._end_drain,
            load=self._tell_load,
            peers=self._pool.states,
        )
        handshakes = {one.rank: handshake_bytes(one.metadata, one.compatibility.hash) for one in readies}
        routers = [pages, handshake_router(handshakes.get, token)]
        if token is not None:
            routers.append(hello_pages(record, token.get_secret_value()))
        internal = create_internal_app(*routers)
        internal_app = guarded(internal, local_hosts(settings, settings.bound_internal_host))
        public_config = public_port(settings, KEEP_ALIVE_S, self._context(internal=False))
        internal_config = internal_port(settings, KEEP_ALIVE_S, self._context(internal=True))
        return (
            HttpPort(public, self._bound, public_config, calls=calls),
            HttpPort(internal_app, self._internal_bound, internal_config),
        )

    def _context(self, *, internal: bool) -> ssl.SSLContext | None:
        return None if self._tls is None else self._tls.server(internal=internal)

    def _tell_load(self) -> WorkerLoad:
        """The engine's load, and the states of its remote engines."""
        return with_peers(self._engine.load(), self._pool.states())

    def _identity(self, ready: RankReady, max_model_len: int) -> Identity:
        settings = self._settings
        return Identity(
            engine_id=self.worker_id,
            model=settings.model_name,
            root=settings.model,
            created=int(time.time()),
            weights=ready.compatibility.weights_fingerprint,
            vocab_size=ready.vocab_size,
            max_model_len=max_model_len,
            internal_host=settings.advertised(settings.bound_internal_host),
            internal_port=port_of(self._internal_bound),
            num_ranks=settings.tp,
            defaults=self._defaults,
            adapters={
                name: AdapterRecord(name=name, root=settings.adapters[name], fingerprint=fingerprint)
                for name, fingerprint in ready.adapters.items()
            },
        )

    def _record(self, ready: RankReady, identity: Identity) -> WorkerRecord:
        settings = self._settings
        return WorkerRecord(
            worker_id=self.worker_id,
            engine_id=self.worker_id,
            role=settings.role,
            model=settings.model_name,
            url=self.url,
            internal_url=self.internal_url,
            compatibility_hash=ready.compatibility.hash,
            weights_fingerprint=ready.compatibility.weights_fingerprint,
            max_model_len=identity.max_model_len,
            block_size=settings.block_size,
            num_blocks=ready.num_blocks,
            max_num_seqs=settings.max_num_seqs,
            tp=settings.tp,
            root=identity.root,
            created=identity.created,
            adapters=tuple(identity.adapters.values()),
            version=version(),
            sampling_defaults=identity.defaults.given,
            name=settings.name,
        )

    def _on_rank_message(self, rank: int, event: FromRank) -> None:
        if isinstance(event, Progress):
            logger.log(logging.WARNING if event.is_warning else logging.INFO, "%s", event.text)
            self._tell(ProgressStatus(text=event.text))
        elif self._ranks is not None:
            self._ranks.handle(rank, event)

    def _on_death(self, error: RankDeadError) -> None:
        """Fail all requests and end the process: a rank has died, and the group has killed the others."""
        if self._ranks is None:
            self._fail(str(error))
        else:
            self._engine.dead(str(error))

    def _fail(self, why: str) -> None:
        if self._health is not None:
            self._health.fail(why)
        if not self.failed.done():
            self.failed.set_result(why)

    def _give_up_lease(self) -> None:
        """End one lease that is kept only because Redis does not answer, because a sequence waits for leased blocks."""
        lease_id = self._keeper.give_up_oldest()
        if lease_id is not None:
            logger.warning("gave up lease %s: its blocks are needed and Redis is silent", lease_id)


async def _stop_ports(*ports: HttpPort) -> None:
    await asyncio.gather(*(port.stop(PORT_GRACE_S) for port in ports))
