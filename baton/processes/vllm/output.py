"""What a vLLM server writes: how far it is, and why it died. Pure.

vLLM has no status pipe. Its log lines are for people and change with any version, so they decide nothing: they are
only shown.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

#: Lines at the end of the output among which the reason of a death is looked for: a traceback in each of its processes.
TAIL_LINES = 2000
MAX_REASON_CHARS = 400
#: The beginning of a line: which process, then level, time and place.
_PREFIX = re.compile(r"^(\(\S+ pid=\d+\) ?)?((DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:]+ \[[^\]]*\] ?)?")
#: A line that shows how far it is, and what is said of it; ``{0}`` is its first group.
_PROGRESS = (
    (re.compile(r"^Resolved architecture: (\S+)"), "reading the configuration ({0})"),
    (re.compile(r"^Initializing a V1 LLM engine"), "starting the engine"),
    (re.compile(r"^Starting to load model"), "loading the model"),
    (re.compile(r"^Time spent downloading weights"), "loading the weights"),
    (re.compile(r"^Loading \w* ?checkpoint shards: +(\d+%)"), "loading the weights ({0})"),
    (re.compile(r"^Loading weights took"), "weights loaded"),
    (re.compile(r"^(?:Dynamo bytecode transform|Compiling a graph|Directly load the compiled)"), "compiling the model"),
    (re.compile(r"KV cache size: ([\d,]+ tokens)"), "KV cache of {0}"),
    (re.compile(r"^Capturing .*?CUDA graphs.*?: +(\d+%)"), "capturing CUDA graphs ({0})"),
    (re.compile(r"^Starting vLLM server on"), "opening the port"),
)
_ERROR = re.compile(r"^(?:[\w.]*(?:Error|Exception|Interrupt|Exit)\b: \S|[\w. -]+: error: \S)")
#: Errors that only say that there is another one above.
_OF_ANOTHER = re.compile(r"See (?:root cause|stack trace)|initialization failed|EngineDeadError|cancelled")


class Output:
    """The output of one server so far."""

    def __init__(self) -> None:
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._rest = b""

    def take(self, chunk: bytes) -> Iterator[str]:
        """Take what was written next; yields how far the server is, for each line that shows it."""
        *lines, self._rest = re.split(rb"[\r\n]+", self._rest + chunk)  # a progress bar ends its lines with \r
        for line in lines:
            text = _PREFIX.sub("", line.decode(errors="replace"))
            self._tail.append(text)
            yield from _progress(text)

    def reason(self) -> str:
        """The line that says best why it died; empty if there is none."""
        lines = [line for line in self._tail if line.strip()]
        errors = [index for index, line in enumerate(lines) if _ERROR.match(line) and not _OF_ANOTHER.search(line)]
        if not errors:
            return ""
        line, *more = (text.strip() for text in lines[errors[-1] : errors[-1] + 3])
        # pydantic names the model that refuses its values, and in the lines below it why.
        because = next((text.removeprefix("Value error, ") for text in more if text.startswith("Value error, ")), "")
        return (because or line)[:MAX_REASON_CHARS]


def _progress(line: str) -> Iterator[str]:
    for pattern, text in _PROGRESS:
        if match := pattern.search(line):
            yield text.format(*match.groups())
            return
