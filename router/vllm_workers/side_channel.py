"""How the side channel of a vLLM server is asked. The implementation is in ``router/vllm_leases``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from router.vllm_leases.side_channel_facts import SideChannelFacts


class SideChannel(Protocol):
    """Asks side channels, with well-formed questions only: of any other, vLLM's listener dies."""

    async def query(self, host: str, port: int) -> SideChannelFacts:
        """What rank (0, 0) of the engine says. Raises SideChannelError."""
