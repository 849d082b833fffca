"""One OpenTelemetry trace per request, for those who ask for it in the standard environment variables.

``setup.py`` reads these and is all that is imported when nobody asks; ``spans.py`` needs the extra ``otel``.
"""
