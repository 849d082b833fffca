"""One request of a load: when it comes, how long it is, and which blocks its prompt begins with."""

from __future__ import annotations

import msgspec

from baton_serve.router.placement import Prompt
from baton_serve.router.placement.chunks import NUM_BYTES, num_chunks_in
from baton_serve.router.placement.prompt import BYTES_PER_TOKEN

#: Tokens of a prompt that one id of ``prefix_ids`` stands for.
PREFIX_TOKENS = 512
_PREFIX_BYTES = PREFIX_TOKENS * BYTES_PER_TOKEN
#: More than the end of a chunk can be, in bytes.
_ENDS = 1 << 20
MODEL = "simulated"


class Job(msgspec.Struct, frozen=True):
    """A request. Equal ids at one place of ``prefix_ids`` mean that the prompts are equal up to the end of that block.

    ``num_new``: tokens of the answer, at least 1.
    """

    came_s: float
    num_tokens: int
    num_new: int
    prefix_ids: tuple[int, ...]

    def prompt(self) -> Prompt:
        """What the router's policies know of it: the chunks that the prompt's text would have."""
        num_bytes = self.num_tokens * BYTES_PER_TOKEN
        ids = self.prefix_ids
        ends = NUM_BYTES[1 : num_chunks_in(num_bytes) + 1]
        chunks = tuple(ids[(end - 1) // _PREFIX_BYTES] * _ENDS + end for end in ends)
        return Prompt.hashed(MODEL, num_bytes, self.num_tokens, chunks)
