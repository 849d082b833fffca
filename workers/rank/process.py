"""The rank as a process: what it prints, how many threads it uses, how it exits."""

from __future__ import annotations

import os
import sys
import warnings
from typing import NoReturn

import torch
from transformers.utils import logging as transformers_logging

from workers.rank_protocol.spec import MAX_DEFAULT_THREADS


def be_quiet() -> None:
    """Turn off progress bars and warnings of libraries; Baton's own messages say what matters."""
    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def limit_threads(num_threads: int | None) -> None:
    """Set torch's threads for one operation: ``num_threads``, else ``OMP_NUM_THREADS``, else the default."""
    if num_threads is None and "OMP_NUM_THREADS" in os.environ:
        return
    torch.set_num_threads(num_threads or min(MAX_DEFAULT_THREADS, len(os.sched_getaffinity(0))))


def exit_now(status: int) -> NoReturn:
    """Exit without the interpreter's clean-up, which takes a second of CPU time for torch alone.

    No clean-up is left to do: the system frees memory, sockets and devices.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
