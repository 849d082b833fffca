"""Claude Code, without a terminal, with a scripted model: it calls tools of this program, which run them here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from rows import KEY, MODEL, URL, check

#: One run with a tool asks the model twice.
TIMEOUT_S = 120
HOME = Path.cwd()
FOLDER = HOME / "project"
FOLDER.mkdir()
#: Nothing of the machine's own Claude Code, and nothing that would leave the machine.
ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": str(HOME),
    "ANTHROPIC_BASE_URL": URL,
    "ANTHROPIC_AUTH_TOKEN": KEY,
    "ANTHROPIC_MODEL": MODEL,
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": MODEL,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
}


def claude(prompt: str, *flags: str, output: str = "json", tools: str = "Bash,Read") -> list[dict[str, Any]]:
    """The events of one run. The last one has the result."""
    words = ["claude", "-p", prompt, "--output-format", output, "--allowedTools", tools, *flags]
    done = subprocess.run(
        words, cwd=FOLDER, env=ENVIRON, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not events:
        raise RuntimeError(done.stdout[-500:] + done.stderr[-500:])
    return events


def answer(prompt: str, *flags: str, **more: str) -> str:
    result = claude(prompt, *flags, **more)[-1]
    if result["is_error"]:
        raise RuntimeError(result["result"])
    return str(result["result"])


def blocks(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The blocks of a type in the messages of a stream."""
    messages = [event["message"]["content"] for event in events if event["type"] in ("assistant", "user")]
    return [block for message in messages if isinstance(message, list) for block in message if block["type"] == kind]


def tool_streamed() -> bool:
    events = claude("Run turn 0.", "--verbose", output="stream-json")
    (call,), (result,) = blocks(events, "tool_use"), blocks(events, "tool_result")
    return call["name"] == "Bash" and "of-turn-0-42" in str(result["content"]) and "Turn 0" in events[-1]["result"]


def file_read() -> bool:
    (FOLDER / "note.txt").write_text("the word is onward\n", encoding="utf-8")
    return answer(f"Read the file {FOLDER / 'note.txt'}.") == "The file says onward."


def ten_turns() -> bool:
    """Each with a tool, in one conversation, which a new process continues every time."""
    session = claude("Run turn 1.")[-1]["session_id"]
    said = [answer(f"Run turn {turn}.", "--resume", session) for turn in range(2, 10)]
    said.append(answer("Run turn 10.", "--continue"))
    if said != [f"Turn {turn} printed 42." for turn in range(2, 11)]:
        raise ValueError(said)
    return True


check("claude -p", lambda: answer("What is your name?") == "I am a script.")
check("claude -p, a tool called and answered, streamed", tool_streamed)
check("claude -p, a file read", file_read)
check("claude -p --resume and --continue, ten turns with a tool each", ten_turns)
