"""Which secrets the processes under ``baton up`` have in their environment."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import httpx
import pytest

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
    with RealUpProcess(tmp_path, *flags, **SECRETS) as up:
        screen = up.until_ready()
        url = re.search(r"http://[\d.:]+/v1", screen)
        assert url is not None and "Bearer $BATON_ADMIN_TOKEN" in screen
        ask_for_a_form(url[0])
        pids = up.pids()
        assert not [secret for secret in SECRETS.values() for shown in (screen, *pids.values()) if secret in shown]
        del pids[up.pid]
        kinds = {"redis-server": "redis", "grammar.trial": "trial", "baton_serve.workers.rank": "rank"}
        found = by_kind(pids, {**kinds, " router ": "router", " worker ": "worker"})
        hub = {"the-token-of-the-hub"}
        trials = found.pop("trial")
        assert trials and not any(trials)
        assert found == {"redis": [set()], "rank": [hub] * 3, "router": [ROUTER] * 3, "worker": [WORKER] * 2}


def ask_for_a_form(url: str) -> None:
    """One request for JSON, whose form is tried in a process of its own."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}
    body = {"model": "baton-demo", "messages": [{"role": "user", "content": "1"}], "response_format": form}
    headers = {"authorization": "Bearer a-key-of-clients"}
    httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=120).raise_for_status()


@pytest.mark.slow
def test_without_a_token_the_admin_api_is_for_this_user_alone(tmp_path: Path) -> None:
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with RealUpProcess(tmp_path, "--port", "0", "--threads-per-worker", "1", **environ) as up:
        screen = up.until_ready()
        file = next((tmp_path / "baton").glob("*.token"))
        assert file.stat().st_mode & 0o777 == 0o600
        assert str(file) in screen
        line = re.search(r"admin  (\S+ workers --url (\S+))", screen)
        assert line is not None
        for method, path, body in STRANGERS:
            assert httpx.request(method, f"{line[2]}/admin/{path}", json=body, timeout=30).status_code == 401

        def operate(*words: str) -> str:
            """What one of the operator's commands prints, with no token given."""
            done = up.baton(*words, **environ)
            assert done.returncode == 0, done.stderr
            return done.stdout

        url = ["--url", line[2]]
        assert "decode" in operate(*shlex.split(line[1])[1:])
        assert "decode" in operate("top", "--once", *url)
        worker = json.loads(operate("workers", "--json", *url))["workers"][0]["id"]
        operate("drain", worker, *url)

        token = file.read_text()
        up.stop_well()
        assert not file.parent.exists()
        logs = [path.read_text(errors="replace") for path in up.log_dir.iterdir()]
        assert all(token not in text for text in [screen, *logs])


STRANGERS = (
    ("GET", "requests", None),
    ("GET", "live", None),
    ("POST", "workers", {"url": "http://127.0.0.1:1", "role": "prefill"}),
    ("POST", "abort", {"all": True}),
)
