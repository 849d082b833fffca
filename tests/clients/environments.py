"""The clients, and their environments: virtual ones of Python, and a folder of Node's packages."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

CALLS = Path(__file__).parent / "calls"
#: Written when everything is installed: an interrupted installation is done again.
DONE = ".installed"
#: The build of torch that plain pip installs on a machine without a GPU.
TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Client:
    """One client. The first of its ``packages`` is the one whose version is shown; they are npm's if ``uses_node``.

    ``script`` is in ``calls/``. A Python script runs in the environment of its client, and where that is Node's, it
    finds the client's program in its PATH.
    """

    name: str
    script: str
    packages: tuple[str, ...]
    uses_node: bool = False

    @property
    def scripted_model(self) -> Path | None:
        """The script of the model with which it talks, beside its own; None: it talks with the demo model."""
        path = (CALLS / self.script).with_suffix(".json")
        return path if path.exists() else None


CLIENTS = (
    Client("openai (Python)", "openai_python.py", ("openai",)),
    Client("openai (node)", "openai_node.mjs", ("openai",), uses_node=True),
    Client("litellm", "litellm_calls.py", ("litellm",)),
    Client("langchain-openai", "langchain_calls.py", ("langchain-openai", "langchain")),
    Client("llama-index", "llama_index_calls.py", ("llama-index-core", "llama-index-llms-openai-like")),
    Client("instructor", "instructor_calls.py", ("instructor", "openai")),
    Client("pydantic-ai", "pydantic_ai_calls.py", ("pydantic-ai-slim[anthropic,openai]",)),
    Client("llm", "llm_calls.py", ("llm",)),
    Client("openai-agents", "openai_agents_calls.py", ("openai-agents",)),
    Client("anthropic", "anthropic_calls.py", ("anthropic",)),
    Client("codex", "codex_calls.py", ("@openai/codex",), uses_node=True),
    Client("Claude Code", "claude_code_calls.py", ("@anthropic-ai/claude-code",), uses_node=True),
    Client("llm-comply", "llm_comply_calls.py", ("llm-comply",)),
    Client("lm-eval", "lm_eval_calls.py", ("lm_eval[api]", TORCH, "transformers", "accelerate")),
)


def prepared(client: Client, root: Path, *, fresh: bool) -> Path:
    """The folder of the client's environment, made if it is not there, or anew if ``fresh``.

    Raises CalledProcessError.
    """
    folder = root / client.script.partition(".")[0]
    if fresh or not (folder / DONE).exists():
        (_install_node if client.uses_node else _install_python)(client, folder)
        (folder / DONE).touch()
    return folder


def command(client: Client, folder: Path) -> list[str]:
    """What runs the client's script, in ``folder``."""
    if client.script.endswith(".mjs"):
        return ["node", str(_copied(client, folder))]
    if client.uses_node:
        return [sys.executable, str(CALLS / client.script)]
    return [str(folder / "bin" / "python"), str(CALLS / client.script)]


def programs(client: Client, folder: Path) -> Path:
    """The folder of the programs that its packages bring."""
    return folder / "node_modules" / ".bin" if client.uses_node else folder / "bin"


def version(client: Client, folder: Path) -> str:
    """The version of the client that is installed."""
    package = client.packages[0].partition("[")[0]
    if client.uses_node:
        text = (folder / "node_modules" / package / "package.json").read_text(encoding="utf-8")
        return str(json.loads(text)["version"])
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([folder / "bin" / "python", "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def _install_python(client: Client, folder: Path) -> None:
    venv.EnvBuilder(clear=True, symlinks=True, with_pip=True).create(folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    # torch comes first and alone, so that nothing brings a build for GPUs.
    for packages in ((TORCH,), client.packages) if TORCH in client.packages else (client.packages,):
        subprocess.run([*pip, "install", "--quiet", *packages], check=True, stdout=sys.stderr)


def _install_node(client: Client, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
    subprocess.run([*npm, *(f"{name}@latest" for name in client.packages)], cwd=folder, check=True, stdout=sys.stderr)


def _copied(client: Client, folder: Path) -> Path:
    """The script in the folder: Node looks for packages beside the script that imports them."""
    copy = folder / client.script
    copy.write_text((CALLS / client.script).read_text(encoding="utf-8"), encoding="utf-8")
    return copy
