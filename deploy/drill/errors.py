"""What a drill ends with when something did not happen."""


class DrillError(Exception):
    """What did not happen, in one line."""
