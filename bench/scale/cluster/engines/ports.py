"""What simulated engines tell the router that asked them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bench.scale.cluster.engines.prefill import PrefillEngine
    from bench.scale.cluster.request import Request


class Asker(Protocol):
    """A router. All methods are about the present leg of the request, unless they say otherwise."""

    def prefilled(self, request: Request, engine: PrefillEngine) -> None:
        """P has computed the prompt, and P's answer is on its way."""

    def reads(self, request: Request, num_tokens: int) -> None:
        """D begins to read that many tokens' blocks; the others are in its cache."""

    def has_read(self, request: Request) -> bool:
        """D has read all. Returns False if it was in vain: P had given up the blocks, or is dead."""

    def first_byte(self, request: Request, leg: int) -> None:
        """D has sent its first token; ``leg`` may be over."""

    def finished(self, request: Request) -> None:
        """D has sent the last token."""
