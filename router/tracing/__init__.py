"""One OpenTelemetry trace per request, if the standard environment variables ask for traces.

``setup`` reads these, and is all that is imported without them. ``spans`` and ``provider`` need the extra ``otel``.
"""
