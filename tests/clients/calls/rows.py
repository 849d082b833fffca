"""Reports what a client could do: a line of JSON for each call."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

URL = os.environ["BATON_URL"]
KEY = os.environ["BATON_KEY"]
MODEL = os.environ["BATON_MODEL"]
#: A question that the demo model was taught.
ASK = "What is Baton?"
#: A schema without free texts: the demo model would not end one.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"leg": {"enum": [1, 2, 3]}, "hand": {"enum": ["left", "right"]}},
    "required": ["leg", "hand"],
    "additionalProperties": False,
}
MAX_TOKENS = 200


def check(call: str, work: Callable[[], Any], *, show: bool = False) -> None:
    """Make one call. It worked if nothing is raised and the result is true. ``show``: the table has the result."""
    why, result = "", None
    try:
        result = work()
        if not result:
            why = f"the result is {result!r}"
    except Exception as error:  # noqa: BLE001 (a client may raise anything, and the next call is made all the same)
        why = "".join(traceback.format_exception_only(error)).strip()[-800:] or type(error).__name__
    shown = str(result) if show and not why else ""
    print(json.dumps({"call": call, "ok": not why, "why": why, "result": shown}), flush=True)
