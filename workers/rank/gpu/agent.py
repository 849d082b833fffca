"""The agent of block transfer for a rank on a GPU. Importing this imports NIXL."""

from __future__ import annotations

import logging

import torch

from baton_serve.workers.rank.gpu import support
from baton_serve.workers.rank_protocol.errors import one_line
from baton_serve.workers.transfer.mapped.mapped_agent import MappedAgent
from baton_serve.workers.transfer.nixl.nixl_agent import NixlAgent
from baton_serve.workers.transfer.nixl.port import TransferAgent

logger = logging.getLogger(__name__)


def new_agent(device: torch.device, name: str) -> TransferAgent:
    """An agent that copies within the GPU by itself if Triton's programs run there, else NIXL's alone.

    Called in the thread that will use it, on which the GPU is the current one. Raises NixlError.
    """
    agent = NixlAgent(name)
    reason = support.missing(device)
    if reason:
        logger.info("NIXL reads all blocks: %s", reason)
        return agent
    try:
        from baton_serve.workers.rank.gpu.mapped_memory import GpuMemory

        return MappedAgent(agent, GpuMemory(device))
    # A compiler, or a driver, may raise anything.
    except Exception as error:  # noqa: BLE001
        logger.warning("NIXL reads all blocks (%s: %s)", type(error).__name__, one_line(error))
        return agent
