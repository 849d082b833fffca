"""Which secrets the processes under ``baton up`` have in their environment."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.kits.baton.up_process import ROOT, RealUpProcess

SECRETS = {
    "BATON_ADMIN_TOKEN": "the-admin-token",
    "BATON_API_KEYS": "a-key-of-clients",
    "BATON_VLLM_API_KEYS": "a-key-of-servers",
    "BATON_INTERNAL_TOKEN": "the-internal-token",
    "HF_TOKEN": "the-token-of-the-hub",
}
ROUTER = {"the-admin-token", "a-key-of-clients", "a-key-of-servers", "the-internal-token"}
WORKER = {"the-internal-token", "the-token-of-the-hub"}


def secrets_in(pid: int) -> set[str]:
    environ = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return {secret for secret in SECRETS.values() if secret in environ}


def by_kind(pids: dict[int, str], kinds: dict[str, str]) -> dict[str, list[set[str]]]:
    """The secrets of each process, by the kind that its command line has a part of."""
    found: dict[str, list[set[str]]] = {}
    for pid, command in pids.items():
        kind = next((kind for part, kind in kinds.items() if part in command), command)
        found.setdefault(kind, []).append(secrets_in(pid))
    return found


def test_each_process_has_those_that_it_needs_and_no_others(tmp_path: Path) -> None:
    flags = ("--port", "0", "--routers", "2", "--decode-tp", "2", "--threads-per-worker", "1")
    up = RealUpProcess(tmp_path, *flags, **SECRETS)
    try:
        url = re.search(r"http://[\d.:]+/v1", up.until_ready())
        assert url is not None
        ask_for_a_form(url[0])
        pids = up.pids()
        del pids[up.pid]
        kinds = {"redis-server": "redis", "grammar.trial": "trial", "baton_serve.workers.rank": "rank"}
        found = by_kind(pids, {**kinds, " router ": "router", " worker ": "worker"})
        hub = {"the-token-of-the-hub"}
        trials = found.pop("trial")
        assert trials and not any(trials)
        assert found == {"redis": [set()], "rank": [hub] * 3, "router": [ROUTER] * 3, "worker": [WORKER] * 2}
    finally:
        up.kill_everything()


def ask_for_a_form(url: str) -> None:
    """One request for JSON, whose form is tried in a process of its own."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": "1"}], "response_format": form}
    headers = {"content-type": "application/json", "authorization": "Bearer a-key-of-clients"}
    request = urllib.request.Request(f"{url}/chat/completions", json.dumps(body).encode(), headers)
    with contextlib.closing(urllib.request.urlopen(request, timeout=120)) as response:
        assert response.status == 200


@pytest.mark.slow
def test_without_a_token_the_admin_api_is_for_this_user_alone(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    up = RealUpProcess(tmp_path, "--port", "0", "--threads-per-worker", "1", **environ)
    try:
        screen = up.until_ready()
        file = next((tmp_path / "baton").glob("*.token"))
        assert file.stat().st_mode & 0o777 == 0o600
        assert str(file) in screen
        line = re.search(r"admin  (\S+ workers --url (\S+))", screen)
        assert line is not None
        assert [status_of(line[2], *call) for call in STRANGERS] == [401] * len(STRANGERS)

        words = ["--url", line[2]]
        assert "decode" in operate(environ, *shlex.split(line[1])[1:])
        assert "decode" in operate(environ, "top", "--once", *words)
        worker = json.loads(operate(environ, "workers", "--json", *words))["workers"][0]["id"]
        operate(environ, "drain", worker, *words)

        token = file.read_text()
        up.ctrl_c()
        up.finish()
        assert not file.parent.exists()
        logs = [path.read_text(errors="replace") for path in up.log_dir.iterdir()]
        assert all(token not in text for text in [screen, *logs])
    finally:
        up.kill_everything()


STRANGERS = (
    ("GET", "requests", None),
    ("GET", "live", None),
    ("POST", "workers", {"url": "http://127.0.0.1:1", "role": "prefill"}),
    ("POST", "abort", {"all": True}),
)


def status_of(url: str, method: str, path: str, body: object) -> int:
    """The status of the admin API's answer to somebody who has no token."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/admin/{path}", data, {"content-type": "application/json"}, method=method)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    refused.value.close()
    return refused.value.code


def operate(environ: dict[str, str], *words: str) -> str:
    """What one of the operator's commands prints, with no token given."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
    command = [sys.executable, "-m", "baton_serve", *words]
    done = subprocess.run(command, env={**clean, **environ}, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
