"""Which processes of a vLLM server a storm may kill as its ranks."""

from __future__ import annotations

import subprocess
import sys

from baton_serve.baton.cluster.process import VllmSpec
from baton_serve.baton.processes.vllm.program import VllmProgram
from baton_serve.baton.processes.vllm.server import ServerPlace, VllmModel

#: Each starts the next and says its id: a launcher, a server, and what is under that.
SLEEP = "import time; time.sleep(600)"
SERVER = f"""
import subprocess, sys
tracker = subprocess.Popen([sys.executable, "-c", {SLEEP!r} + " # from multiprocessing.resource_tracker import main"])
engine = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
print(engine.pid, flush=True)
engine.wait()
tracker.kill()
"""
LAUNCHER = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SERVER!r}])"


def test_the_tracker_of_shared_memory_is_none() -> None:
    program = VllmProgram(("vllm",), "0.32.0", on_cpu=True)
    spec = VllmSpec("decode", program, VllmModel("/m", 30, "m"), ServerPlace(1, 2, 3))
    with subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        engine = int(launcher.stdout.readline())
        try:
            assert spec.ranks(launcher.pid) == [engine]
        finally:
            subprocess.run(["kill", str(engine)], check=True)
