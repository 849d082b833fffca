"""What a tool gave and no model here can read, in both dialects.

The model is told of it in its place: an agent sends the output with every request that follows, and nobody could take
it back.
"""

from __future__ import annotations

from typing import Any

from pydantic import BeforeValidator

_KINDS = {"input_image": "A picture", "input_file": "A file", "image": "A picture", "document": "A document"}


def _told(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _KINDS:
        return {"type": "text", "text": f"[{_KINDS[kind]} that this model cannot read]"}
    return part


#: Has a sentence take the place of such a part.
TOLD = BeforeValidator(_told)
