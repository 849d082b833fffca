"""``quietly.py WHAT COMMAND...``: run a command that takes long and prints too much.

It prints a line when the command begins, one every few seconds with what it is doing, and one when it is done. If the
command fails, all of its output is printed. It needs nothing but Python, as there is no environment yet.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

#: Seconds between two lines with something new, and between two lines if there is nothing new.
NEWS_S, NO_NEWS_S = 3.0, 9.0
#: Beginnings of lines that say nothing about the progress of pip, without spaces in front.
NOISE = (
    *("WARNING:", "Looking in", "Requirement already", "Using cached", "[notice]"),
    *("Attempting uninstall", "Found existing", "Uninstalling", "Successfully uninstalled"),
)
MAX_LINE_CHARS = 100


def main(arguments: Sequence[str]) -> int:
    """The exit status of the command."""
    what, *command = arguments
    began_s = time.monotonic()
    print(f"{what} ...", flush=True)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines: list[str] = []
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    try:
        _follow(reader, lines, began_s)
        code = process.wait()
    except KeyboardInterrupt:  # the command has got it from the terminal as well
        print(f"waiting for {command[0]} to end", flush=True)
        process.wait()
        return 128 + signal.SIGINT
    if code:
        print("".join(lines), file=sys.stderr, flush=True)
    print(f"{what}: {'done' if code == 0 else 'failed'} in {time.monotonic() - began_s:.0f} s", flush=True)
    return code


def _read(process: subprocess.Popen[bytes], lines: list[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.decode(errors="replace"))  # noqa: PERF401 (the list is read meanwhile)


def _follow(reader: threading.Thread, lines: Sequence[str], began_s: float) -> None:
    said, said_s = "", began_s
    while reader.is_alive():
        reader.join(NEWS_S)
        news, now_s = _news(lines), time.monotonic()
        if reader.is_alive() and (news != said or now_s - said_s >= NO_NEWS_S):
            print(f"  {now_s - began_s:4.0f} s  {news}", flush=True)
            said, said_s = news, now_s


def _news(lines: Sequence[str]) -> str:
    """The last line of the output that is about the progress."""
    stripped = (line.strip() for line in reversed(lines))
    line = next((line for line in stripped if line and not line.startswith(NOISE)), "at work")
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} ..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
