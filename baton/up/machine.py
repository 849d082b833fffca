"""Finds out what this machine has, without importing a compute library."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from baton_serve.baton.up.machine_shares import Machine


def this_machine(environ: Mapping[str, str]) -> Machine:
    """The CPUs that this process may use, the GPUs that it can see, and the memory that all processes share."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(len(os.sched_getaffinity(0)), _gpus(environ), memory_bytes)


def _gpus(environ: Mapping[str, str]) -> tuple[str, ...]:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(part.strip() for part in visible.split(",") if part.strip() not in ("", "-1"))
    devices = (re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia*"))
    return tuple(str(index) for index in range(sum(match is not None for match in devices)))
