"""Why a request ends early, and how a leg failed: from the error of the connection or of the worker. Pure."""

from __future__ import annotations

from baton_serve.core.net.client.errors import CallError, CallTimeout, ConnectError, ConnectionLost
from baton_serve.core.protocol.errors import ApiError, DeadlineError, UnavailableError, UpstreamError
from baton_serve.router.request.failure_table import Failure
from baton_serve.router.upstream.worker_errors import ABORTED, ENGINE_DEAD, ENGINE_GONE, READ_FAILED

#: The kinds of failure that a worker's error codes name; any other code is an ordinary error.
_BY_CODE = {
    ENGINE_GONE: Failure.NOT_TAKEN,
    ENGINE_DEAD: Failure.DIED,
    ABORTED: Failure.ABORTED,
    READ_FAILED: Failure.READ_FAILED,
}


class ClientGone(ApiError):
    """The client closed its connection, so this error is sent to no one."""

    status = 499
    type = "client_gone"
    code = "client_gone"


class TryAnother(Exception):
    """A worker failed in a way that another one may not. The client is sent ``error`` if no other one is tried."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


class StreamBroken(Exception):
    """D's stream broke before its last event. The client is sent ``error`` if no other worker continues the stream."""

    def __init__(self, error: ApiError, cause: CallError | None = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.failure = failure_of(error if cause is None else cause)


def cause_of(error: CallError | TryAnother) -> CallError | ApiError:
    """The error of the connection, or the error that the worker sent."""
    return error.error if isinstance(error, TryAnother) else error


def failure_of(cause: CallError | ApiError) -> Failure:
    """The kind of failure: the column of the table in ``request.failure_table``."""
    match cause:
        case ConnectError():
            return Failure.DIED if cause.was_sent else Failure.NOT_TAKEN
        case ConnectionLost():
            return Failure.DIED
        case CallTimeout():
            return Failure.SILENT
        case ApiError():
            return _BY_CODE.get(cause.code or "", Failure.ERROR)
    return Failure.ERROR


def api_error(error: CallError | TryAnother) -> ApiError:
    """The error that the client is sent when this was the last attempt."""
    cause = cause_of(error)
    if failure_of(cause) is Failure.NOT_TAKEN or isinstance(cause, ConnectError):
        return UnavailableError("No worker for this request can be reached.", code="worker_unreachable")
    if isinstance(cause, ApiError):
        return cause
    if isinstance(cause, CallTimeout):
        return DeadlineError(f"No answer in time: {cause}.", code="worker_timeout")
    return UpstreamError(f"A worker failed: {cause}.")
