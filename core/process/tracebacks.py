"""What a handled exception keeps alive."""

from __future__ import annotations


def forget_frames(error: BaseException | None) -> None:
    """Drop the tracebacks of an exception that is handled and logged, and of all exceptions that led to it.

    A traceback keeps the frames that the exception went through, with all of their variables: the body of a request
    among them. Where such a variable refers to the exception, only the garbage collector would free them.
    """
    pending, seen = [error], set[int]()
    while pending:
        one = pending.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.__traceback__ = None
        pending += (one.__cause__, one.__context__)
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions
