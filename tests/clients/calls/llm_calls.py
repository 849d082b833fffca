"""llm, the command line tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from rows import ASK, KEY, MAX_TOKENS, MODEL, SCHEMA, URL, check

HOME = Path.cwd() / "llm"
HOME.mkdir()
os.environ["LLM_USER_PATH"] = str(HOME)
WHERE = {"model_name": MODEL, "api_base": f"{URL}/v1", "api_key_name": "openai"}
(HOME / "extra-openai-models.yaml").write_text(
    json.dumps(
        [
            {"model_id": "baton", **WHERE, "supports_schema": True, "supports_tools": True},
            {"model_id": "baton-text", **WHERE, "completion": True},
        ]
    ),
    encoding="utf-8",
)
(HOME / "keys.json").write_text(json.dumps({"openai": KEY}), encoding="utf-8")


def llm(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "llm", *words], capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.strip()


SHORT = ("-o", "max_tokens", str(MAX_TOKENS))
check("llm -m MODEL", lambda: llm("-m", "baton", ASK))
check("llm --no-stream", lambda: llm("-m", "baton", "--no-stream", ASK))
check("llm -c, the conversation goes on", lambda: llm("-m", "baton", "-c", "What is a lease?"))
check("llm --schema", lambda: json.loads(llm("-m", "baton", *SHORT, "--schema", json.dumps(SCHEMA), ASK))["leg"])
check("llm -T, with a tool", lambda: llm("-m", "baton", "-T", "llm_version", ASK))
check("llm -m MODEL, of completions", lambda: llm("-m", "baton-text", "The baton"))
