"""A worker's log: lines for people or JSON for machines, on standard error."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import orjson


class JsonLines(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(entry).decode()


def set_up_logging(level: str, shape: str) -> None:
    """Once per process. Libraries that tell every request are kept at warnings."""
    handler = logging.StreamHandler()
    text = logging.Formatter("%(asctime)s %(levelname).1s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if shape == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("uvicorn", "uvicorn.error", "httpx", "httpcore", "transformers", "asyncio"):
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLogger().level))
