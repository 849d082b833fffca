"""Which versions of vLLM the connector was run with."""

from __future__ import annotations

#: The connector uses private names of vLLM's NixlConnector, which any version may change.
KNOWN = ("0.32.0",)


class UnknownVersionError(RuntimeError):
    """This vLLM is none that the connector was run with."""


def check_version(version: str) -> None:
    """Raise UnknownVersionError unless ``version``, as vLLM tells it, is a known one. A build's own tag is ignored."""
    if version.partition("+")[0] not in KNOWN:
        raise UnknownVersionError(
            f"BatonConnector is made for vLLM {', '.join(KNOWN)} and this is {version}: install that version, or use "
            "NixlConnector, which has no fence."
        )
