"""Makes threads of stock vLLM servers that never rest sleep for a moment each time round.

vLLM's ranks spin around ``sched_yield`` while they wait for their next step, and a thread of NIXL in every server
spins around ``poll`` with a timeout of 0. On Linux 6.18, where a yield moves a task's virtual time, threads that woke
up beside two such servers on two cores were seen to wait for thirteen seconds, and beside four for two minutes.
Servers that people start are left as they are.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from baton_serve.core.process.child_secrets import environ_for

#: 1 ms: with 50 us a server with nothing to do took half a core to wake up, and 1 ms is still short beside a step. A
#: signal may cut it short, which is no error: a yield has none.
_SOURCE = b"""
#define _GNU_SOURCE
#include <poll.h>
#include <time.h>
static void rest(void) { struct timespec moment = {0, 1000000}; nanosleep(&moment, 0); }
int sched_yield(void) { rest(); return 0; }
int poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    struct timespec timeout = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    int ready = ppoll(fds, count, timeout_ms < 0 ? 0 : &timeout, 0);
    if (timeout_ms == 0 && ready == 0) rest();
    return ready;
}
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
    compiled = subprocess.run(
        command, input=_SOURCE, capture_output=True, check=False, env=environ_for("helper", os.environ)
    )
    if compiled.returncode != 0:
        return {}
    return {_VARIABLE: ":".join(filter(None, (os.environ.get(_VARIABLE), str(library))))}
