"""The error with which a drill ends."""


class DrillError(Exception):
    """Something did not happen as it should. The message is one line."""
