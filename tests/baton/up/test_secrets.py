"""Which secrets the processes under ``baton up`` have in their environment."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from pathlib import Path

from tests.kits.baton.up_process import RealUpProcess

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
        kinds = {"redis-server": "redis", "grammar.trial": "trial", "workers.rank": "rank"}
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
