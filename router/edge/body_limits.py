"""What bodies may be made of that no client sends."""

from __future__ import annotations

from core.protocol.json_body import BodyLimits

#: What operators and other routers send: a few keys.
SMALL = BodyLimits(max_messages=0, max_values=4096)
