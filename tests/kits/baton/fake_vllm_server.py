"""Plays vLLM's server, with nothing but the standard library: it is copied into an environment without Baton.

It has an engine in a process of its own, which lives on when this one is killed, as vLLM's does. What it was started
with is in ``FAKE_VLLM_DIR``, one file for each start: arguments, environment, and the engine's process id.
``FAKE_VLLM_PREFILL`` and ``FAKE_VLLM_DECODE`` make the servers of a role misbehave: ``crash`` dies while it loads;
``usage`` refuses its arguments; ``deaf`` ignores SIGTERM; ``silent`` never serves.
"""

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

CRASH = """\
(Worker pid=7) ERROR 11-23 04:00:00 [multiproc_executor.py:1] Traceback (most recent call last):
(Worker pid=7) ERROR 11-23 04:00:00 [multiproc_executor.py:1]   File "gpu_worker.py", line 1, in load_model
(Worker pid=7) ERROR 11-23 04:00:00 [multiproc_executor.py:1] torch.OutOfMemoryError: CUDA out of memory.
(EngineCore pid=8) ERROR 11-23 04:00:01 [core.py:1] Traceback (most recent call last):
(EngineCore pid=8) ERROR 11-23 04:00:01 [core.py:1] Exception: WorkerProc initialization failed due to an exception. \
See stack trace for root cause.
(APIServer pid=9) Traceback (most recent call last):
(APIServer pid=9)   File "core_client.py", line 1, in __init__
(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
nanobind: leaked 4 instances!
"""


def main() -> None:
    """Serve until SIGTERM."""
    flags = dict(pairwise([*sys.argv[1:], ""]))
    config = json.loads(flags["--kv-transfer-config"])
    role = {"kv_producer": "prefill", "kv_consumer": "decode"}[config["kv_role"]]
    behaviour = os.environ.get(f"FAKE_VLLM_{role.upper()}", "")
    stop: list[int] = []  # a signal handler may append; setting an event there waits for a lock that wait() may hold
    say("INFO 11-23 04:00:00 [model.py:733] Resolved architecture: LlamaForCausalLM")
    if behaviour == "usage":
        print("usage: vllm serve [model_tag] [options]", flush=True)
        print("vllm serve: error: unrecognized arguments: --flux 3", flush=True)
        sys.exit(2)
    if behaviour == "crash":
        print(CRASH, end="", flush=True)
        sys.exit(1)
    signal.signal(signal.SIGTERM, lambda *_: None if behaviour == "deaf" else stop.append(1))
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note_start(role, engine.pid)
    print("Loading safetensors checkpoint shards:  50% Completed | 1/2\r", end="", flush=True)
    if behaviour != "silent":
        serve(flags, stop)
    else:
        wait(stop)
    engine.kill()
    note("STAND_IN_STOPPED", role)


def serve(flags: dict, stop: list[int]) -> None:
    class Api(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            models = {"object": "list", "data": [{"id": flags.get("--served-model-name", "m"), "object": "model"}]}
            body = json.dumps(models).encode() if self.path == "/v1/models" else b""
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((flags["--host"], int(flags["--port"])), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    wait(stop)
    server.server_close()


def wait(stop: list[int]) -> None:
    """Wait in small steps: a signal that the system gives to another thread does not wake this one."""
    while not stop:
        time.sleep(0.05)


def say(line: str) -> None:
    print(f"(APIServer pid={os.getpid()}) {line}", flush=True)


def note_start(role: str, engine: int) -> None:
    folder = os.environ.get("FAKE_VLLM_DIR")
    if folder:
        about = {"argv": sys.argv[1:], "environ": dict(os.environ), "pid": os.getpid(), "engine": engine}
        about["launcher"] = os.getppid()
        path = Path(folder, f"{role}-{time.monotonic_ns()}.json")
        path.with_suffix(".new").write_text(json.dumps(about))
        path.with_suffix(".new").rename(path)


def note(variable: str, text: str) -> None:
    if variable in os.environ:
        with Path(os.environ[variable]).open("a") as file:
            file.write(f"{text}\n")


main()
