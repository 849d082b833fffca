"""Log lines as text or JSON: the same shape from every process, so that one reader understands all of them.

The fields of a record made with ``extra={FACTS: {...}}`` are in its JSON line too; its text should say the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

import orjson

#: The attribute of a record with fields for programs: names to numbers, strings, booleans or None.
FACTS = "facts"


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """A line with time, level, logger and message, and with the facts, which cannot replace the other fields."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in getattr(record, FACTS, {}).items():
            line.setdefault(name, value)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


#: Characters that could end a line, or move the cursor of a terminal.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {0x2028: "\\u2028", 0x2029: "\\u2029"}


class TextFormatter(logging.Formatter):
    """One line per record, followed by the traceback of an exception. Text from clients cannot begin a new line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, with control characters as escapes."""
        return super().formatMessage(record).translate(_ESCAPES)


def set_up_logging(level: str, shape: str, quiet: Iterable[str]) -> None:
    """Configure logging of this process to standard error, once. ``quiet`` loggers log warnings and errors only."""
    handler = logging.StreamHandler()
    if shape == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname).1s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in quiet:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
