"""How much of a worker's cache a request's prompt takes."""

from __future__ import annotations

from collections.abc import Sequence

from baton_serve.core.protocol.errors import BadRequestError
from baton_serve.router.pool import Worker


class Need:
    """Room for a prompt and one token. A worker that does not report its blocks counts as having enough.

    ``exact``: P counted the tokens, or the client sent token ids. Else ``num_tokens`` is an estimate, which may be too
    high, so at most half of a worker's blocks are required. ``source``: the worker that already holds the prompt's
    blocks; None: none does.
    """

    __slots__ = ("exact", "num_tokens", "source")

    def __init__(self, num_tokens: int, *, exact: bool, source: Worker | None = None) -> None:
        self.num_tokens = num_tokens
        self.exact = exact
        self.source = source

    def __repr__(self) -> str:
        about = "" if self.exact else "about "
        return f"<Need for {about}{self.num_tokens} tokens>"

    def blocks_on(self, worker: Worker) -> int:
        """Number of blocks needed on a worker; 0 if the block size is not known."""
        if not worker.usage.block_size:
            return 0
        num_blocks = -(-(self.num_tokens + 1) // worker.usage.block_size)
        return num_blocks if self.exact else min(num_blocks, worker.usage.num_blocks // 2)

    def fits(self, worker: Worker, num_taken: int = 0) -> bool:
        """Whether the worker has room now. ``num_taken``: blocks leased since its report, without reserved ones."""
        spare = None if worker is self.source else worker.usage.spare_blocks  # the source uses the blocks that it holds
        return spare is None or self.blocks_on(worker) <= spare - num_taken

    def check(self, workers: Sequence[Worker], param: str) -> None:
        """Raise BadRequestError if it is certain that the prompt will never fit any of ``workers``."""
        if not self.exact or not workers or any(self._may_ever_fit(worker) for worker in workers):
            return
        raise BadRequestError(
            f"The prompt has {self.num_tokens} tokens, but {_bound(workers)}, at least one of them for the answer.",
            param=param,
            code="context_length_exceeded",
        )

    def _may_ever_fit(self, worker: Worker) -> bool:
        return not worker.usage.num_blocks or self.blocks_on(worker) <= worker.usage.num_blocks


def _bound(workers: Sequence[Worker]) -> str:
    """What a prompt must fit into: the tightest bound that is the same wherever it is sent."""
    cache = max(worker.usage.num_blocks * worker.usage.block_size for worker in workers)
    context = max((facts.max_model_len for worker in workers for facts in worker.facts.values()), default=0)
    if 0 < context < cache:
        return f"this model's maximum context length is {context} tokens"
    return f"the largest KV cache for this model holds {cache}"
