"""A vLLM server in Baton's registry, where routers find it without being given its address."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import TYPE_CHECKING

from baton_serve.core.protocol.vllm_server import VllmRecord, VllmStatus
from baton_serve.core.protocol.worker import Role
from baton_serve.core.registry.announcer import Announcer

if TYPE_CHECKING:
    from collections.abc import Callable

    from vllm.config import VllmConfig

    from baton_serve.core.protocol.worker import WorkerLoad
    from baton_serve.core.registry.store import Registry
    from baton_serve.workers.vllm.loop_thread import LoopThread

#: Routers ask the server for its load twice a second anyway, so they need not hear of it more often from here.
INTERVAL_MS = 1000
#: A step may hold the interpreter for seconds, and this thread with it. A server that was killed routers notice by its
#: port, and not by this.
TTL_MS = 10_000
_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE, "kv_both": Role.BOTH}


class Presence:
    """Announces the server. Call ``start`` and ``stop`` in the scheduler's thread, each once at most."""

    def __init__(
        self, registry: Registry[VllmStatus], record: VllmRecord, load: Callable[[], WorkerLoad], thread: LoopThread
    ) -> None:
        """``load`` is called on the thread's loop, which closes the registry in the end."""
        self._registry = registry
        self._thread = thread
        self._announcer = Announcer(
            registry,
            record.server_id,
            lambda: VllmStatus(record=record, load=load()),
            interval_ms=INTERVAL_MS,
            ttl_ms=TTL_MS,
            who="vLLM server",
        )
        self._starting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Announce it from now on."""
        self._thread.call(self._start)

    def stop(self) -> bool:
        """Withdraw it, so that routers forget it now. Returns whether this was done in time."""
        return self._thread.finish(self._stop())

    def _start(self) -> None:
        self._starting = asyncio.get_running_loop().create_task(self._announcer.start(), name="announce")

    async def _stop(self) -> None:
        if self._starting is not None:
            await self._starting  # the first announcement may be on its way, and is to be withdrawn as well
        await self._announcer.stop()
        await self._registry.close()


def is_announced(config: VllmConfig) -> bool:
    """Whether this engine speaks for its server: of the data-parallel engines behind one port the first one does."""
    return int(config.parallel_config.data_parallel_index) == 0


def vllm_record(
    config: VllmConfig, *, url: str, version: str, side_channel: tuple[str, int], handshake_port: int
) -> VllmRecord:
    """What the server says about itself. The KV cache has to be known already."""
    transfer, model = config.kv_transfer_config, config.model_config
    names = model.served_model_name
    host, port = side_channel
    return VllmRecord(
        server_id=uuid.uuid4().hex,
        role=_ROLES[transfer.kv_role],
        model=names if isinstance(names, str) else names[0],
        url=url,
        version=version,
        side_channel_host=host,
        side_channel_port=port,
        handshake_port=handshake_port,
        max_num_seqs=config.scheduler_config.max_num_seqs,
        max_model_len=model.max_model_len,
        block_size=config.cache_config.block_size,
        num_blocks=config.cache_config.num_gpu_blocks or 0,
        tp=config.parallel_config.tensor_parallel_size,
        started_s=time.time(),
    )
