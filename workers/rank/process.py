"""The rank as a process: what it prints, how many threads it uses, how it exits."""

from __future__ import annotations

import ctypes
import os
import sys
import warnings
from typing import NoReturn

import torch
from transformers.utils import logging as transformers_logging

from baton_serve.workers.rank_protocol.spec import MAX_DEFAULT_THREADS


def be_quiet() -> None:
    """Turn off progress bars and warnings of libraries; Baton's own messages say what matters."""
    warnings.simplefilter("ignore")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def limit_threads(num_threads: int | None) -> None:
    """Set torch's threads for one operation: ``num_threads``, else ``OMP_NUM_THREADS``, else the default.

    There are no more than OpenMP gives: products of torch in bfloat16 are not numbers where it gives fewer than asked.
    """
    if num_threads is None:
        default = min(MAX_DEFAULT_THREADS, len(os.sched_getaffinity(0)))
        num_threads = torch.get_num_threads() if "OMP_NUM_THREADS" in os.environ else default
    torch.set_num_threads(min(num_threads, _openmp_limit()))


def _openmp_limit() -> int:
    """The most threads of OpenMP (``OMP_THREAD_LIMIT``), which from here on do not depend on what else runs."""
    openmp = ctypes.CDLL(None)
    try:
        openmp.omp_set_dynamic(0)
        return int(openmp.omp_get_thread_limit())
    except AttributeError:  # torch was built without it
        return sys.maxsize


def exit_now(status: int) -> NoReturn:
    """Exit without the interpreter's clean-up, which takes a second of CPU time for torch alone.

    No clean-up is left to do: the system frees memory, sockets and devices.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
