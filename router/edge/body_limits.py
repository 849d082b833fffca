"""Limits of bodies that operators and other routers send."""

from __future__ import annotations

from baton_serve.core.protocol.openai.json_body import BodyLimits

#: For bodies with only a few keys.
SMALL = BodyLimits(max_messages=0, max_values=4096)
