"""One OpenTelemetry trace per request, for those who ask for it in the standard environment variables.

``setup`` reads these; it is all that is imported when nobody asks. The rest needs the extra
``otel``.
"""
