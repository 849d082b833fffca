"""One OpenTelemetry trace per request, if the standard environment variables ask for traces.

``setup`` reads these variables; without them nothing else is imported. ``spans`` and ``provider`` need the extra
``otel``.
"""
