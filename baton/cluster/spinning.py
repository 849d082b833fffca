"""Makes threads of stock vLLM servers that spin around ``sched_yield`` sleep for a moment instead.

vLLM's ranks wait so for their next step, and NIXL has a thread in every server that never rests. On Linux 6.18, where a
yield moves a task's virtual time, threads that woke up beside two such servers on two cores were seen to wait for
thirteen seconds; with this, for less than one. Servers that people start are left as they are.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

#: 1 ms: with 50 us a server with nothing to do took half a core to wake up, and 1 ms is still short beside a step. A
#: signal may cut it short, which is no error: a yield has none.
_SOURCE = b"""
#include <time.h>
int sched_yield(void) { struct timespec moment = {0, 1000000}; nanosleep(&moment, 0); return 0; }
"""
_VARIABLE = "LD_PRELOAD"


@functools.cache
def without_spinning() -> dict[str, str]:
    """Environment variables for such a server; none where there is no C compiler. What the user has preloaded stays."""
    compiler = shutil.which("cc")
    if compiler is None:
        return {}
    folder = tempfile.mkdtemp(prefix="baton-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = Path(folder) / "sleep_instead_of_yield.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(library)]
    compiled = subprocess.run(command, input=_SOURCE, capture_output=True, check=False)
    if compiled.returncode != 0:
        return {}
    return {_VARIABLE: ":".join(filter(None, (os.environ.get(_VARIABLE), str(library))))}
