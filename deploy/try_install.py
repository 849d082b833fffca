"""``make test-install``: does what a new user does first, in empty environments and an empty directory.

For each Python: the wheel is built and installed without extras, where ``baton`` says what is missing. With the extra
``router`` the command line and a router work, and ``baton up`` says what is missing. With the extra ``worker``
``baton up`` serves the demo model and answers, and Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "deploy" / "constraints.txt"
#: The same as in the Makefile.
TORCH = "torch==2.13.0"
ANSWER_TIMEOUT_S = 120.0
QUESTION = {"model": "baton-demo", "temperature": 0, "messages": [{"role": "user", "content": "What is a lease?"}]}


class WrongError(Exception):
    """Something does not work as it should. The message says what."""


def main() -> int:
    """Try every Python; returns 0 if all is well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], help="interpreters; default: this one")
    parser.add_argument("--without-worker", action="store_true", help="leave out PyTorch (gigabytes with CUDA)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="baton-install-") as folder:
        try:
            wheel = build(Path(folder))
            for number, python in enumerate(options.pythons):
                place = Path(folder) / str(number)
                (place / "empty").mkdir(parents=True)
                Installed(python, place).check(wheel, with_worker=not options.without_worker)
        except (WrongError, subprocess.CalledProcessError) as error:
            print(f"wrong: {error}", file=sys.stderr)
            return 1
    return 0


def build(folder: Path) -> Path:
    """The wheel of this checkout."""
    _pip(sys.executable, "wheel", "--no-deps", "-w", str(folder), str(ROOT), what="building the wheel")
    (wheel,) = folder.glob("*.whl")
    return wheel


class Installed:
    """One environment of one Python, and an empty directory to work in."""

    def __init__(self, python: str, place: Path) -> None:
        self._here = place / "empty"
        self._bin = place / "venv" / "bin"
        subprocess.run([python, "-m", "venv", place / "venv"], check=True)
        self._name = self._run("python", "--version").stdout.strip()

    def check(self, wheel: Path, with_worker: bool) -> None:
        """Raises WrongError, CalledProcessError."""
        self._install(str(wheel), what=f"{self._name}: installing the wheel")
        done = self._run("baton", "--help")
        _expect(done.returncode == 1 and "pip install 'baton-serve[router]'" in done.stderr, "baton", done.stderr)
        self._install(f"{wheel}[router]", what=f"{self._name}: installing the router")
        self._check_router()
        if with_worker:
            self._install(TORCH, what=f"{self._name}: installing PyTorch")
            self._install(f"{wheel}[worker]", what=f"{self._name}: installing the extra")
            self._check_serving()

    def _install(self, item: str, what: str) -> None:
        _pip(str(self._bin / "python"), "install", "--only-binary=:all:", "-c", str(CONSTRAINTS), item, what=what)

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        argv = [str(self._bin / command[0]), *command[1:]]
        return subprocess.run(argv, cwd=self._here, capture_output=True, text=True, check=False)

    def _check_router(self) -> None:
        for words in (["--help"], ["version"], ["router", "--help"]):
            done = self._run("baton", *words)
            _expect(done.returncode == 0, f"baton {' '.join(words)}", done.stderr)
        done = self._run("baton", "up", "--port", "0")
        _expect(done.returncode == 1 and "pip install 'baton-serve[worker]'" in done.stderr, "baton up", done.stderr)
        with self._started("router", "--port", "0", until=r"http://\S+:\d+") as url:
            status = httpx.get(f"{url}/health", trust_env=False).status_code
            _expect(status == httpx.codes.OK, "the router's /health", str(status))
        print(f"{self._name}: the command line and a router work without the extra for workers", flush=True)

    def _check_serving(self) -> None:
        with self._started("up", "--port", "0", until=r"Baton serves baton-demo on (\S+)/v1") as url:
            answer = httpx.post(f"{url}/v1/chat/completions", json=QUESTION, timeout=ANSWER_TIMEOUT_S, trust_env=False)
            text = answer.raise_for_status().json()["choices"][0]["message"]["content"]
        _expect("lease" in text, "the answer", text)
        _expect(not any(self._here.iterdir()), "the empty directory", "it is not empty any more")
        print(f"{self._name}: baton up serves: {text}", flush=True)

    @contextmanager
    def _started(self, *words: str, until: str) -> Iterator[str]:
        """Run ``baton`` until ``until`` matches a line; yields the match, or its group.

        Ctrl-C has to end it in order then.
        """
        process = subprocess.Popen(
            [self._bin / "baton", *words], cwd=self._here, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield _find(process, until)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate()
            _expect(process.returncode == 0, f"the end of baton {words[0]}", said)
        finally:
            process.kill()
            process.wait()


def _find(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        print(f"    {line}", end="", flush=True)
        said.append(line)
        if found := re.search(pattern, line):
            return found[found.re.groups]
    raise WrongError(f"it ended early: {''.join(said)}")


def _pip(python: str, *words: str, what: str) -> None:
    pip = [python, "-m", "pip", *words, "--disable-pip-version-check", "--progress-bar", "off"]
    subprocess.run([sys.executable, ROOT / "deploy" / "quietly.py", what, *pip], check=True)


def _expect(good: bool, what: str, otherwise: str) -> None:
    if not good:
        raise WrongError(f"{what}: {otherwise}")


if __name__ == "__main__":
    sys.exit(main())
