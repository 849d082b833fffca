"""The rank process: ``python -m baton_serve.workers.rank.main FD PARENT_PID SPEC``, started by ``RankLink``.

FD is the inherited end of a stream socket for the messages of ``core/protocol/steps.py``; SPEC is a ``RankSpec`` as
JSON. In order: start the receiver, load the model (together with the other ranks), build the cache, start block
transfer, send ``RankReady``, and execute steps until the main process sends ``Shutdown`` or closes the socket.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import torch

from baton_serve.core.process import failpoints
from baton_serve.core.process.allocator import MAX_PIECE_BYTES, keep_memory
from baton_serve.core.process.parent_death import end_with
from baton_serve.core.protocol.handshake import Compatibility, RankMetadata, Shard
from baton_serve.core.protocol.steps import ForgetGrammar, GrammarCompiled, Progress, RankFailed, RankReady
from baton_serve.workers.rank import distributed, process
from baton_serve.workers.rank.cache.kv_cache import LAYOUT, KVCache, count_blocks
from baton_serve.workers.rank.cpu.support import missing
from baton_serve.workers.rank.device import use_on_this_thread
from baton_serve.workers.rank.grammar.library import GrammarLibrary
from baton_serve.workers.rank.graphs.setup import record_graphs, wants_graphs
from baton_serve.workers.rank.loading.model import ModelShard, load_model
from baton_serve.workers.rank.receiver import Outbox, Receiver
from baton_serve.workers.rank.runner import Runner
from baton_serve.workers.rank_protocol.errors import SIBLING_LOST_STATUS, ModelLoadError, RankError, one_line
from baton_serve.workers.rank_protocol.spec import RankSpec
from baton_serve.workers.transfer.port import Emit, NullTransfer, RankMemory, Transfer, TransferEvent
from baton_serve.workers.transfer.versions import VersionTable

#: Free memory that a rank keeps.
KEPT_BYTES = 1 << 30


@dataclass(frozen=True)
class LoadedRank:
    """The parts of a loaded rank, and the ``RankReady`` message that announces it."""

    runner: Runner
    transfer: Transfer
    grammars: GrammarLibrary
    ready: RankReady
    device: torch.device


def main(arguments: Sequence[str]) -> int:
    """Run a rank; returns the exit status. Errors are sent as ``RankFailed``, except the loss of another rank."""
    descriptor, parent_pid, spec_json = arguments
    end_with(int(parent_pid))
    process.be_quiet()
    failpoints.arm(os.environ)
    spec = msgspec.json.decode(spec_json, type=RankSpec)
    with socket.socket(fileno=int(descriptor)) as sock:
        outbox = Outbox(sock)
        try:
            serve(spec, Receiver(sock, outbox), outbox)
        except Exception as error:
            if distributed.is_lost_sibling(error):
                print(f"rank {spec.rank}: {one_line(error)}", file=sys.stderr)
                return SIBLING_LOST_STATUS
            outbox.send(RankFailed(_reason(spec, error)))
            if isinstance(error, RankError):
                return 1
            # Out of memory, an error of a driver, a bug: the message goes to people, the traceback to the log.
            raise
    return 0


def _reason(spec: RankSpec, error: Exception) -> str:
    """The message for people. It names the rank, unless the model is the problem and thus every rank has the error."""
    text = one_line(error) if isinstance(error, RankError) else f"{type(error).__name__}: {one_line(error)}"
    return text if isinstance(error, ModelLoadError) else _named(spec, text)


def _named(spec: RankSpec, text: str) -> str:
    return text if spec.num_ranks == 1 else f"rank {spec.rank}: {text}"


def serve(spec: RankSpec, receiver: Receiver, outbox: Outbox) -> None:
    """Load the model, then execute steps until the receiver ends."""
    receiver.start()
    process.limit_threads(spec.num_threads)
    # The next layer needs what this one gives back: a tenth of the time of a prefill.
    keep_memory(KEPT_BYTES, MAX_PIECE_BYTES)

    def emit(event: TransferEvent) -> None:
        if isinstance(event, RankFailed):
            outbox.send(RankFailed(_named(spec, event.error)))
            receiver.end()
        else:
            outbox.send(event)

    rank = load(spec, emit, lambda text: outbox.send(Progress(text)), outbox.send)
    if rank.device.type == "cpu" and (why := missing()):
        outbox.send(Progress(f"this rank computes more slowly than it could, because {why}", is_warning=True))
    receiver.serve(rank.transfer, rank.grammars)
    outbox.send(rank.ready)
    try:
        while (message := receiver.steps.get()) is not None:
            if isinstance(message, ForgetGrammar):
                rank.grammars.forget(message)
            else:
                outbox.send(rank.runner.execute(message))
    finally:
        # Reads in flight write into the cache, so they must end before its memory is freed.
        rank.transfer.close()
    distributed.leave()


def load(
    spec: RankSpec,
    emit: Emit,
    progress: Callable[[str], None],
    answer: Callable[[GrammarCompiled], None] = lambda message: None,
) -> LoadedRank:
    """Load the model, build the cache, start block transfer. Raises RankError, and the errors of torch and NIXL."""
    model = load_model(spec, progress)
    shape = model.cache_shape
    with_graphs = wants_graphs(spec, model.device, model.kernel)
    num_blocks = distributed.minimum(count_blocks(spec, shape, model.device), model.device)
    cache = KVCache(shape, num_blocks, model.device, with_spare=with_graphs)
    versions = VersionTable(cache.num_blocks)
    tokens, num_bytes = cache.num_blocks * shape.block_size, cache.num_blocks * shape.block_bytes
    progress(f"KV cache: {cache.num_blocks} blocks, {tokens} tokens, {num_bytes / 1e6:.0f} MB")
    graphs = record_graphs(spec, model, cache, progress)
    transfer = _start_transfer(spec, _memory(spec, cache, versions), emit)
    ready = RankReady(
        rank=spec.rank,
        num_blocks=cache.num_blocks,
        block_bytes=shape.block_bytes,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        compatibility=_compatibility(spec, model),
        metadata=transfer.metadata(),
        load_s=model.load_s,
        fingerprint_s=model.fingerprint_s,
        adapters=model.adapters.names,
    )
    grammars = GrammarLibrary(answer, model.vocab_size)
    runner = Runner(model, cache, versions, grammars, samples=spec.rank == 0, graphs=graphs)
    return LoadedRank(runner, transfer, grammars, ready, model.device)


def _memory(spec: RankSpec, cache: KVCache, versions: VersionTable) -> RankMemory:
    on_gpu = cache.device.type == "cuda"
    shape = cache.shape
    first_head = spec.rank * shape.num_kv_heads
    metadata = RankMetadata(
        engine_id=spec.engine_id,
        rank=spec.rank,
        num_ranks=spec.num_ranks,
        agent_metadata=b"",
        agent_name="",
        cache_address=cache.address,
        cache_memory_type="VRAM" if on_gpu else "DRAM",
        cache_device_id=(cache.device.index or 0) if on_gpu else 0,
        num_blocks=cache.num_blocks,
        block_bytes=shape.block_bytes,
        shard=Shard(
            first_layer=0,
            last_layer=shape.num_layers,
            first_head=first_head,
            last_head=first_head + shape.num_kv_heads,
        ),
        version_address=versions.address,
    )
    return RankMemory(metadata, versions)


def _compatibility(spec: RankSpec, model: ModelShard) -> Compatibility:
    """The compatibility of the engine: values of the whole model, not of this rank's shard."""
    shape = model.cache_shape
    return Compatibility(
        weights_fingerprint=model.weights_fingerprint,
        kv_dtype=str(shape.dtype).removeprefix("torch."),
        layout=LAYOUT,
        block_size=shape.block_size,
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads * spec.num_ranks,
        head_dim=shape.head_dim,
    )


def _start_transfer(spec: RankSpec, memory: RankMemory, emit: Emit) -> Transfer:
    if spec.transfer == "none":
        return NullTransfer(memory, emit)
    from baton_serve.core.ucx import apply_ucx_environment

    # NIXL reads the environment when it is imported.
    apply_ucx_environment(spec.internal_host)
    from baton_serve.workers.transfer.rank_transfer import RankTransfer

    on_gpu = memory.metadata.cache_memory_type == "VRAM"
    prepare = partial(use_on_this_thread, memory.metadata.cache_device_id) if on_gpu else None
    return RankTransfer(memory, emit, spec.transfer_options, on_thread_start=prepare)


if __name__ == "__main__":
    process.exit_now(main(sys.argv[1:]))
