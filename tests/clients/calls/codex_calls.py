"""Codex, OpenAI's agent for the command line: the real program, whose model is a scripted one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from rows import MODEL, URL, check

NUM_TURNS = 10
HOME = Path.cwd() / "codex"
WORK = Path.cwd() / "work"
CONFIG = f"""
model = "{MODEL}"
model_provider = "baton"
model_catalog_json = "{HOME}/models.json"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.baton]
name = "Baton"
base_url = "{URL}/v1"
wire_api = "responses"
env_key = "BATON_KEY"
"""


def run(*words: str) -> str:
    done = subprocess.run(
        ["codex", *words],
        cwd=WORK,
        env={**os.environ, "CODEX_HOME": str(HOME)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        raise RuntimeError(done.stderr + done.stdout)
    return done.stdout


def items(*words: str) -> dict[str, Any]:
    """What ``codex exec`` has done, by its kind; of several of one kind the last."""
    events = map(json.loads, run("exec", "--json", "--skip-git-repo-check", *words).splitlines())
    return {event["item"]["type"]: event["item"] for event in events if event["type"] == "item.completed"}


def become(model: str) -> None:
    """Have Codex take our model for one of OpenAI's, which decides on the tools that it sends."""
    known = json.loads(KNOWN)["models"]
    like = next(one for one in known if one["slug"] == model)
    (HOME / "models.json").write_text(json.dumps({"models": [{**like, "slug": MODEL}]}), encoding="utf-8")


def turn(number: int, *words: str) -> bool:
    done = items(*words, f"This is turn {number}")
    command, answer = done["command_execution"], done["agent_message"]["text"]
    return f"of-turn-{number}" in command["aggregated_output"] and answer == f"The command said {number}."


def written() -> bool:
    done = items("Please write something")
    return done["agent_message"]["text"] == "It is written." and "This is" in (WORK / "something.txt").read_text()


for folder in (HOME, WORK):
    folder.mkdir()
KNOWN = run("debug", "models")
(HOME / "config.toml").write_text(CONFIG, encoding="utf-8")
become("gpt-5.5")
check("codex exec", lambda: items("Say hello")["agent_message"]["text"] == "Hello.")
check("a command is run and its output answered", lambda: turn(1))
check(
    f"{NUM_TURNS} turns of one session (resume --last)",
    lambda: all(turn(number, "resume", "--last") for number in range(2, NUM_TURNS + 1)),
)
check("a patch is applied (a custom tool)", written)
become("gpt-6-luna")
check(
    "a program of the model calls a tool (a custom tool in a namespace)",
    lambda: items("Please compute 17")["agent_message"]["text"] == "It is 17.",
)
