"""The rank as a process: what it prints, how many threads it uses, how it exits."""

from __future__ import annotations

import ctypes
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


#: Names of mallopt's parameters, in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
#: The largest that glibc takes, for pieces that it asks of the system one by one.
_MAX_MMAP_THRESHOLD_BYTES = 32 << 20
_KEPT_BYTES = 1 << 30


def keep_memory() -> bool:
    """Have the allocator keep memory that is free, which the next layer needs again; False if it is not glibc's.

    Otherwise it gives the results of large operations back to the system, which clears them for each new one: a tenth
    of the time of a prefill.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    # Both, as setting one ends glibc's own adjustment of the other.
    done = mallopt(_M_MMAP_THRESHOLD, _MAX_MMAP_THRESHOLD_BYTES), mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    return all(done)


def exit_now(status: int) -> NoReturn:
    """Exit without the interpreter's clean-up, which takes a second of CPU time for torch alone.

    No clean-up is left to do: the system frees memory, sockets and devices.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
