"""Finds out from OpenTelemetry's environment variables whether requests are traced, and where their spans go.

Without them no part of OpenTelemetry is imported.
"""

from __future__ import annotations

import atexit
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from baton_serve.router.telemetry.tracing.provider import Tracing

log = logging.getLogger("baton.router")

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PROTOCOL = "http/protobuf"
_EXPORTERS = frozenset({"otlp", "console"})


def set_up(environ: Mapping[str, str]) -> Tracing | None:
    """Set up tracing as the environment asks for it; it is closed when the process exits.

    Returns None if tracing is not asked for, or not possible, which is logged.
    """
    names = exporters(environ)
    if not names:
        return None
    try:
        from baton_serve.router.telemetry.tracing.provider import Tracing, batches
    except ImportError as error:
        log.warning(
            "requests are not traced, although the environment asks for it: %s; pip install 'baton-serve[otel]'", error
        )
        return None
    try:
        tracing = Tracing([batches(name) for name in names], environ)
    except ValueError as error:
        log.warning("requests are not traced: a variable of OpenTelemetry is not understood: %r", str(error))
        return None
    atexit.register(tracing.close)
    log.info("requests are traced to %s", ", ".join(names))
    return tracing


def exporters(environ: Mapping[str, str]) -> list[str]:
    """Names of the exporters to use; empty: no tracing. Logs a warning for each requested but unusable exporter."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    asked = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if not asked:
        asked = "otlp" if any(environ.get(name) for name in _ENDPOINTS) else "none"
    names = list(dict.fromkeys(name.strip() for name in asked.split(",")))
    usable = [name for name in names if name in _EXPORTERS]
    for name in names:
        if name not in _EXPORTERS and name != "none":
            log.warning("OTEL_TRACES_EXPORTER: %r is not known; otlp, console and none are", name)
    protocol = next((environ[name] for name in _PROTOCOLS if environ.get(name)), _PROTOCOL)
    if "otlp" in usable and protocol != _PROTOCOL:
        log.warning("OTLP is sent as %s only, not as %r: requests are not traced with it", _PROTOCOL, protocol)
        usable.remove("otlp")
    return usable
