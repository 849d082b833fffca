"""What an engine has in Redis, made as the settings say: its leases, and its server's place in the registry."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from baton_serve.core.leases.in_redis.store import RedisLeaseStore
from baton_serve.core.redis_client import cluster_complaint
from baton_serve.core.registry.announcement import VLLM_SERVERS
from baton_serve.core.registry.redis_registry import RedisRegistry
from baton_serve.workers.vllm.engine_load import EngineLoad
from baton_serve.workers.vllm.leases import SchedulerLeases
from baton_serve.workers.vllm.loop_thread import LoopThread
from baton_serve.workers.vllm.presence import Presence, is_announced, vllm_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.config import VllmConfig

    from baton_serve.workers.vllm.settings import ConnectorSettings

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows its own loggers only

#: vLLM's default of ``kv_lease_duration``, seconds.
DEFAULT_LEASE_S = 30


class InRedis:
    """Call all methods in the scheduler's thread: ``start`` once the KV cache is there, and ``stop`` at the end."""

    def __init__(
        self,
        config: VllmConfig,
        engine_id: str,
        given: ConnectorSettings,
        *,
        version: str,
        side_channel: tuple[str, int],
        handshake_port: int,
    ) -> None:
        """``version``: vLLM's; ``side_channel``: its host and port; ``handshake_port``: see ``VllmRecord``.

        Raises ValueError for settings that cannot be used, and OSError for their files.
        """
        self._thread: LoopThread | None = None
        self._presence: Presence | None = None
        #: None: leases are vLLM's own.
        self.leases: SchedulerLeases | None = None
        url = given.redis_login()
        why = cluster_complaint(url) if url else None
        if why is not None:
            raise ValueError(why)
        if not url:
            logger.info("BATON_REDIS_URL is not set: leases are vLLM's own, and routers are to be given this server.")
        elif config.kv_transfer_config.is_kv_producer:
            self.leases = _leases(config, self._needed_thread(), engine_id, url, given.redis_grace_ms)
        self.load = EngineLoad(config.cache_config.num_gpu_blocks or 0, lambda: len(self.leases or ()))
        if not url or not is_announced(config):
            return
        if not given.announce_url:
            logger.info("BATON_ANNOUNCE_URL is not set: routers are to be given this server.")
            return
        registry = RedisRegistry(url, VLLM_SERVERS, key=given.announcement_key())
        record = vllm_record(
            config,
            url=given.announce_url,
            version=version,
            side_channel=side_channel,
            handshake_port=handshake_port,
        )
        self._presence = Presence(registry, record, self.load.now, self._needed_thread())

    def start(self, free_blocks: Callable[[], int]) -> None:
        """Announce the server. ``free_blocks`` says how many blocks are free, in any thread."""
        self.load.bind(free_blocks)
        if self._presence is not None:
            self._presence.start()

    def stop(self) -> None:
        """Withdraw the server, so that routers send it nothing new; then end the leases."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        try:
            if self._presence is not None and not self._presence.stop():
                logger.warning("The registry does not answer: this server's entry there runs out by itself.")
        finally:
            try:
                if self.leases is not None:
                    self.leases.stop()
            finally:
                thread.stop()

    def _needed_thread(self) -> LoopThread:
        if self._thread is None:
            self._thread = LoopThread()
            self._thread.start()
        return self._thread


def _leases(config: VllmConfig, thread: LoopThread, engine_id: str, url: str, redis_grace_ms: int) -> SchedulerLeases:
    """The leases of a P."""
    duration_s = int(config.kv_transfer_config.get_from_extra_config("kv_lease_duration", DEFAULT_LEASE_S))
    leases = SchedulerLeases(
        RedisLeaseStore(url), thread, engine_id, duration_ms=1000 * duration_s, redis_grace_ms=redis_grace_ms
    )
    leases.start()
    return leases
