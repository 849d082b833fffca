"""The half in each worker: NixlConnector's, with the words of the fence, and leases that end elsewhere."""

from __future__ import annotations

import hashlib
import itertools
import logging
from typing import TYPE_CHECKING, Any

import msgspec
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

from baton_serve.core.leases.store import LeaseState
from baton_serve.workers.vllm.agent import LateNotices, nixl_errors
from baton_serve.workers.vllm.block_layout import BlockLayout
from baton_serve.workers.vllm.fence.block_reads import read_blocks
from baton_serve.workers.vllm.fence.block_words import BlockWords
from baton_serve.workers.vllm.fence.promises import num_slots
from baton_serve.workers.vllm.fence.reads import FenceReads, Verdict
from baton_serve.workers.vllm.fence.tables import MEMORY, Table, Tables
from baton_serve.workers.vllm.fence.words import Words
from baton_serve.workers.vllm.messages import BatonStep, FencedPayload
from baton_serve.workers.vllm.replay import replaying
from baton_serve.workers.vllm.side_channel import ask_tables, tables_in
from baton_serve.workers.vllm.stats import FenceStats

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.tp_mapping import ReadSpec
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from baton_serve.workers.vllm.fence.block_reads import ReadBlocks
    from baton_serve.workers.vllm.peers import Peers

logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows its own loggers only

#: Words that one rank can be reading at once; further checks wait.
NUM_LANDINGS = 4096
#: The key of ``kv_connector_extra_config`` that turns the checks off. The words are there all the same.
FENCE = "fence"


class BatonWorker(NixlPullConnectorWorker):
    """What each method is for says vLLM's ``NixlBaseConnectorWorker``."""

    nixl_wrapper: Any
    transfer_topo: Any
    xfer_handshake_metadata: Any
    compat_hash: Any

    def __init__(self, vllm_config: VllmConfig, engine_id: str, kv_cache_config: KVCacheConfig, peers: Peers) -> None:
        super().__init__(vllm_config, engine_id, kv_cache_config)
        self._peers = peers
        self.xfer_stats = FenceStats()
        self._errors = nixl_errors(self.nixl_wrapper)
        self.nixl_wrapper = self._notices = LateNotices(self.nixl_wrapper)
        slots = num_slots(kv_cache_config.num_blocks, vllm_config.scheduler_config.max_num_seqs)
        self._words = Words(slots, NUM_LANDINGS)
        self._blocks = BlockWords(kv_cache_config.num_blocks)
        self._layout = BlockLayout.of(vllm_config, kv_cache_config)
        self._tables = Tables(self.nixl_wrapper)
        self._reads: FenceReads | None = None
        #: Requests that have a lease in the store, with what is known of it.
        self._leased: dict[str, LeaseState] = {}
        self._checks_fence = bool(self.kv_transfer_config.get_from_extra_config(FENCE, True))
        if not self._checks_fence:
            logger.warning("%r is false: a read that comes too late may give another prompt's text.", FENCE)

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The tables are registered before the caches, so that what NIXL tells about this agent includes them."""
        words, blocks = self._words, self._blocks
        for table in (words, blocks):
            region = self.nixl_wrapper.get_reg_descs([(table.address, table.array.nbytes, 0, "")], MEMORY)
            self.nixl_wrapper.register_memory(region, backends=self.nixl_backends)
            self._registered_descs.append(region)
        super().register_kv_caches(kv_caches)
        self._reads = FenceReads(self.nixl_wrapper, words, blocks, self._tables, self._errors)
        if self._layout.gives_up_blocks:
            # A stock P leaves no token to D, and a stock D expects none to be left: neither fits to this engine.
            self.compat_hash = hashlib.sha256(f"{self.compat_hash} leaves a token to D".encode()).hexdigest()
        self.xfer_handshake_metadata = FencedPayload(
            self.compat_hash,
            self.xfer_handshake_metadata.agent_metadata_bytes,
            Table(
                self.engine_id,
                words.address,
                words.num_slots,
                self._checks_fence,
                blocks.address,
                blocks.num_blocks if self._layout.counts_allocations else 0,
            ),
        )

    def take_blocks(self, metadata: NixlConnectorMetadata) -> None:
        """The words of blocks are stored before this step writes into them."""
        step: BatonStep = metadata.baton
        self._blocks.apply(step.taken)

    def start_load_kv(self, metadata: NixlConnectorMetadata) -> None:
        """The words of this step's new requests are stored, which is before P can answer."""
        assert self._reads is not None
        step: BatonStep = metadata.baton
        self._words.apply(step.words)
        self._peers.learn(step.handshake_ports)
        for request_id, promise in step.promises.items():
            self._reads.expect(request_id, promise, self._read_blocks_of(metadata, request_id))
        super().start_load_kv(metadata)
        for request_id in step.promises.keys() - self._recving_metadata.keys():
            self._reads.forget(request_id)  # D has all blocks itself, or nobody wants them: P is only told
        self._leased |= dict.fromkeys(self._reqs_to_send.keys() & set(step.leased), LeaseState.HELD)
        self._leased |= {request_id: step.ended[request_id] for request_id in step.ended.keys() & self._leased.keys()}

    def get_transfer_results(self) -> KVConnectorTransferResults:
        """The words of what has ended are overwritten before the scheduler hears of it."""
        assert self._reads is not None
        results = super().get_transfer_results()
        self._words.end(results.finished_sending, self._blocks.last)
        for request_id in results.finished_recving:
            self._reads.forget(request_id)
        return results

    def shutdown(self) -> None:
        """The checks end before the agent does."""
        reads: FenceReads | None = getattr(self, "_reads", None)  # called also after a failure in the constructor
        if reads is not None:
            self._reads = None
            reads.close()
        super().shutdown()

    def _nixl_handshake(
        self,
        host: str,
        port: int,
        remote_tp_size: int,
        expected_engine_id: str,
        remote_dcp_size: int = 1,
        remote_pp_size: int = 1,
        *args: Any,
    ) -> tuple[dict[tuple[int, int], str], float]:
        """In vLLM's thread for handshakes. Over HTTP all ranks are asked first, and vLLM is told their answers. On the
        side channel, where the words are is asked first, in a question of its own. So if there is no answer, there is
        nothing to take back.
        """
        if remote_pp_size > 1:  # its tables are of the ranks of one stage
            raise RuntimeError(
                f"The engine {expected_engine_id} at {host}:{port} has {remote_pp_size} pipeline stages, and "
                "BatonConnector reads from engines that have one: use NixlConnector on both sides."
            )
        tp_ranks = self.transfer_topo.handshake_target_ranks(remote_tp_size, remote_dcp_size)
        ranks = [*itertools.product(range(remote_pp_size), tp_ranks)]
        told = self._peers.ask(expected_engine_id, host, ranks)
        handshake = super()._nixl_handshake
        if told is not None:
            handshake = replaying(handshake.__func__, told).__get__(self)
        tables = {}
        if self._checks_fence:
            tables = ask_tables(host, port, ranks) if told is None else tables_in(told.payloads)
        if tables and ({one.engine_id for one in tables.values()} != {expected_engine_id} or len(tables) < len(ranks)):
            raise RuntimeError(f"{host}:{port} is not the engine {expected_engine_id} any more.")
        agents, clock_offset = handshake(
            host, port, remote_tp_size, expected_engine_id, remote_dcp_size, remote_pp_size, *args
        )
        if tables:
            self._tables.meet(expected_engine_id, {rank[1]: (agents[rank], table) for rank, table in tables.items()})
        else:
            logger.warning(
                "No fence is checked for the engine %s: what is read from it after the end of its lease may be another "
                "prompt's blocks. %s",
                expected_engine_id,
                "Start it with BatonConnector." if self._checks_fence else f"{FENCE!r} is false here.",
            )
        return agents, clock_offset

    def _cleanup_remote_engine(self, engine_id: str, *, log_eviction: bool = True) -> None:
        self._tables.forget(engine_id)
        super()._cleanup_remote_engine(engine_id, log_eviction=log_eviction)

    def _read_blocks(self, read_spec: ReadSpec, dst_engine_id: str, request_id: str, *args: Any, **kwargs: Any) -> bool:
        """An engine with a fence is told after the check that it was read from, since it frees the blocks then."""
        assert self._reads is not None
        if dst_engine_id not in self._tables:
            return bool(super()._read_blocks(read_spec, dst_engine_id, request_id, *args, **kwargs))
        num_pending = len(self._pending_recv_notifs.get(request_id, ()))
        with self._notices.held() as held:
            has_begun = bool(super()._read_blocks(read_spec, dst_engine_id, request_id, *args, **kwargs))
        if held:
            agent = self._remote_agents[dst_engine_id][(0, read_spec.remote_rank)]
            self._pending_recv_notifs.setdefault(request_id, []).extend((agent, notice) for notice in held)
        # A read that vLLM splits between two kinds of memory notifies P later by itself.
        if len(self._pending_recv_notifs.get(request_id, ())) > num_pending:
            has_same_blocks = self._has_same_blocks(dst_engine_id)
            self._reads.reads_from(request_id, dst_engine_id, read_spec.remote_rank, by_block=has_same_blocks)
        return has_begun

    def _reap_expired_send_leases(self, done_sending: set[str]) -> None:
        """A lease in the store ends when a router releases it, at once, or when it has expired there and here.

        Here it is extended by the heartbeats of a D, or of a router that does not use the store.
        """
        for request_id in self._leased.keys() - self._reqs_to_send.keys():
            del self._leased[request_id]  # D has read
        for request_id in [one for one, state in self._leased.items() if state is LeaseState.RELEASED]:
            self._end_send(request_id)
            done_sending.add(request_id)
        held = [request_id for request_id, state in self._leased.items() if state is LeaseState.HELD]
        deadlines = {request_id: self._reqs_to_send.pop(request_id) for request_id in held}
        super()._reap_expired_send_leases(done_sending)
        self._reqs_to_send |= deadlines

    def _end_send(self, request_id: str) -> None:
        """Forget a hand-off of which some ranks of D may have told that they have read it."""
        del self._leased[request_id], self._reqs_to_send[request_id]
        self._reqs_to_process.discard(request_id)
        self.consumer_notification_counts_by_req.pop(request_id, None)
        self.expected_consumer_notifications_by_req.pop(request_id, None)

    def _read_blocks_of(self, metadata: NixlConnectorMetadata, request_id: str) -> ReadBlocks | None:
        """The blocks that will be read for a request, by which a part of them can be kept; None if none can be.

        To be called before vLLM replaces the numbers in ``metadata`` by those of smaller pieces.
        """
        meta = metadata.reqs_to_recv.get(request_id)
        if meta is None or meta.remote is None or not self._layout.keeps_parts:
            return None
        try:
            (local,), (remote,) = meta.local_block_ids, msgspec.convert(meta.remote.block_ids, list[list[int]])
        except (ValueError, msgspec.ValidationError):  # none are read, or a client has written them
            return None
        return read_blocks(list(local), remote)

    def _has_same_blocks(self, engine_id: str) -> bool:
        """Whether a block of that engine has as many tokens as one here."""
        remote = self.transfer_topo.get_engine_info(engine_id)
        return (remote.remote_block_size, remote.remote_physical_blocks_per_logical) == (
            self.block_size,
            self._physical_blocks_per_logical_kv_block,
        )

    def _pop_done_transfers(self, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
        """A request whose blocks have been read is done when the fence has a verdict."""
        assert self._reads is not None
        done, failed = super()._pop_done_transfers(transfers)
        for request_id, finding in self._reads.settle(done - failed - self._recv_failures).items():
            if finding is None:
                done.remove(request_id)
                transfers[request_id] = []  # without handles, vLLM finds it done again in the next step
                continue
            self.xfer_stats.record_check(finding.verdict)
            if finding.verdict in (Verdict.UNPROMISED, Verdict.FAILED):
                logger.warning("The prompt of %s is computed here: its hand-off is %s.", request_id, finding.verdict)
                self._send_pending_recv_notifs(request_id)  # P may keep the blocks, and nobody else will read them
            if finding.verdict in (Verdict.LATE, Verdict.STALE):
                self._pending_recv_notifs.pop(request_id, None)  # P would take it for a read that nobody checked
            if finding.num_good == 0:
                failed.add(request_id)
            elif finding.num_good is not None:
                (local,) = self._recving_metadata[request_id].local_block_ids
                self._invalid_block_ids.put(set(local[finding.num_good :]))
        return done, failed
