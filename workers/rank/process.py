"""The rank as a process of this system: who its parent is, what it may print, how many threads it uses."""

from __future__ import annotations

import os
import sys
import warnings
from typing import NoReturn

import torch
from transformers.utils import logging as transformers_logging

from workers.rank_protocol.spec import MAX_DEFAULT_THREADS


def be_quiet() -> None:
    """No progress bars, no warnings of the libraries: what matters comes as our own messages."""
    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def limit_threads(num_threads: int | None) -> None:
    """Torch's threads for one operation. ``OMP_NUM_THREADS`` wins over the default, an explicit number over both."""
    if num_threads is None and "OMP_NUM_THREADS" in os.environ:
        return
    torch.set_num_threads(num_threads or min(MAX_DEFAULT_THREADS, len(os.sched_getaffinity(0))))


def leave(status: int) -> NoReturn:
    """End with ``status``, without taking the interpreter apart: torch alone takes a second of computing for that.

    What has to be put in order is over by now; memory, sockets and devices go back to the system in any case.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
