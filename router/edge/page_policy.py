"""The headers that tell a browser what Baton's pages may load, and that other sites may not frame them."""

from __future__ import annotations

import base64
import hashlib


def headers(**sources: str) -> dict[str, str]:
    """Headers of a page, a script or a style sheet. ``sources`` are directives of the policy: ``script="'self'"``.

    Kinds of content that are not named may not be loaded, and no page of another site may frame this one.
    """
    allowed = "".join(f"{name}-src {source}; " for name, source in sources.items())
    return {
        "content-security-policy": (
            f"default-src 'none'; {allowed}base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }


def inline(text: str) -> str:
    """The policy source that allows exactly this inline style or script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
