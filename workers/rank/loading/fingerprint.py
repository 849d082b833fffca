"""A hash over a model's weights and config: equal on two engines if they compute the same KV cache."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from transformers import PreTrainedModel

from baton_serve.workers.rank import distributed

#: Config fields about where a checkpoint comes from or how it is run, not about what it computes.
_IRRELEVANT = {
    "_name_or_path",
    "_attn_implementation",
    "_commit_hash",
    "architectures",
    "distributed_config",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
#: Bytes that one thread hashes in one call.
CHUNK_BYTES = 16 << 20
#: Most chunks that wait for a thread. This limits the memory of tensors that were gathered from several ranks.
_MAX_WAITING = 64
_DIGEST_BYTES = hashlib.sha256().digest_size


def fingerprint(model: PreTrainedModel, chunk_bytes: int = CHUNK_BYTES) -> str:
    """32 hex digits of a hash over the config and over name, shape, dtype and every byte of each tensor.

    The hash covers the tensors in memory, with which the model computes. So the result does not depend on the files of
    the checkpoint, even if they change meanwhile, or on the number of ranks. All ranks have to call this at the same
    time. Each rank hashes its share of the chunks, with as many threads as torch has.
    """
    tensors = sorted(model.state_dict().items())
    with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="fingerprint") as threads:
        chunks = _Chunks(threads, chunk_bytes)
        ranges = [chunks.add(tensor.detach()) for _, tensor in tensors]
        digests = distributed.merge_bytes(chunks.digests(), model.device)
    headings = [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in tensors]
    config = {name: value for name, value in model.config.to_dict().items() if name not in _IRRELEVANT}
    root = hashlib.sha256(json.dumps([config, headings], sort_keys=True, default=str).encode())
    for chunk in ranges:
        root.update(digests[chunk.start * _DIGEST_BYTES : chunk.stop * _DIGEST_BYTES])
    return root.hexdigest()[:32]


class _Chunks:
    """Hashes chunks of tensors in threads; hashing releases the interpreter lock.

    Chunks are numbered over all tensors. Each of ``n`` ranks hashes every ``n``-th chunk.
    """

    def __init__(self, threads: ThreadPoolExecutor, chunk_bytes: int) -> None:
        self._threads = threads
        self._chunk_bytes = chunk_bytes
        self._rank, self._num_ranks = distributed.rank_and_size()
        self._num_chunks = 0
        self._waiting: deque[tuple[int, Future[bytes]]] = deque()
        self._done: dict[int, bytes] = {}
        #: Chunk numbers by the memory of the tensor, because tied weights are one tensor under several names.
        self._known: dict[tuple[object, ...], range] = {}

    def add(self, tensor: torch.Tensor) -> range:
        """Hash a tensor that may be split over the ranks; returns the numbers of its chunks."""
        own = distributed.local_part(tensor)
        place = (own.data_ptr(), own.shape, own.stride(), own.dtype)
        if place not in self._known:
            first = self._num_chunks
            self._submit(distributed.full_tensor(tensor))
            self._known[place] = range(first, self._num_chunks)
        return self._known[place]

    def digests(self) -> bytearray:
        """The digests of all chunks, with zeros for the chunks that other ranks hash."""
        self._wait_until(0)
        joined = bytearray(self._num_chunks * _DIGEST_BYTES)
        for number, digest in self._done.items():
            joined[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES] = digest
        return joined

    def _submit(self, tensor: torch.Tensor) -> None:
        flat = tensor.reshape(-1).view(torch.uint8)
        for start in range(0, len(flat), self._chunk_bytes):
            chunk = flat[start : start + self._chunk_bytes]
            if self._num_chunks % self._num_ranks == self._rank:
                self._waiting.append((self._num_chunks, self._threads.submit(_digest, chunk)))
            self._num_chunks += 1
            self._wait_until(_MAX_WAITING)

    def _wait_until(self, num_waiting: int) -> None:
        while len(self._waiting) > num_waiting:
            number, future = self._waiting.popleft()
            self._done[number] = future.result()


def _digest(chunk: torch.Tensor) -> bytes:
    return hashlib.sha256(chunk.cpu().numpy().data).digest()
