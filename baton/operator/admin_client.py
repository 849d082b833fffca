"""What the operator's commands ask a router: ``/admin``, over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import httpx

from baton_serve.baton.processes.own_token import own_token
from baton_serve.core.net.tls import why
from baton_serve.core.protocol.ids import IdError, resolve

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from baton_serve.baton.settings import AdminSettings


class AdminError(Exception):
    """The router did not do what was asked; the message is one line for a person and holds no secret."""


class NotSupportedError(AdminError):
    """The router has no such call."""


class AdminClient:
    """Calls on one router. Every method raises AdminError."""

    def __init__(self, settings: AdminSettings) -> None:
        self.url = settings.url.rstrip("/")
        #: Ids of the routers whose requests are missing in the last answer, because they did not answer the router that
        #: was asked.
        self.unreachable_routers: list[str] = []
        try:
            self._has_tls = httpx.URL(self.url).scheme == "https"
        except httpx.InvalidURL as error:
            raise AdminError(f"{self.url} is not the URL of a router: {error}") from None
        self._timeout_s = settings.timeout_s
        self._ca_file = settings.ca_file
        given = settings.admin_token
        token = own_token(self.url, os.environ) if given is None else given.get_secret_value()
        self._headers = {"Accept-Encoding": "identity"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def requests(self) -> list[dict[str, Any]]:
        """Live requests of all routers, oldest first, as ``GET /admin/requests`` gives them."""
        return self._listing("requests")

    def ended(self, outcome: str | None = None) -> list[dict[str, Any]]:
        """The requests of all routers that ended last, newest first; with ``outcome`` only those that ended so."""
        return self._listing("ended", "requests/ended" + (f"?outcome={outcome}" if outcome else ""))

    def workers(self) -> list[dict[str, Any]]:
        """Known workers, as ``GET /admin/workers`` gives them."""
        return self._listing("workers")

    def workers_and_lost(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Known workers, and lost ones; of these a router of another version may tell none."""
        answer = self._call("GET", "/admin/workers")
        return self._rows(answer, "workers"), self._rows({"lost": [], **answer}, "lost")

    def abort(self, request_id: str) -> list[str]:
        """End the one request whose id begins with ``request_id``; returns its id in a list. Raises RouterRefusedError
        if there is none, or several.
        """
        return _ids(self._call("POST", f"/admin/requests/{_segment(request_id)}/abort"))

    def abort_matching(self, wanted: Mapping[str, Any]) -> list[str]:
        """End every request that matches the filter; returns their ids."""
        return _ids(self._call("POST", "/admin/abort", wanted))

    def tell_worker(self, worker_id: str, what: str) -> bool:
        """Send ``what``, ``drain`` or ``resume``. Returns False if the routers were notified, because the worker cannot
        be.
        """
        answer = self._call("POST", f"/admin/workers/{_segment(worker_id)}/{what}")
        return bool(answer["told"])

    def live(self) -> Generator[dict[str, Any], None, None]:
        """Yields the snapshots of ``GET /admin/live`` as they come. Raises AdminError also when none comes in time."""
        with self._open("GET", "/admin/live", None) as response:
            for line in _lines(response):
                if line.startswith(b"data:"):
                    yield _snapshot(line[len(b"data:") :])

    def _listing(self, what: str, path: str = "") -> list[dict[str, Any]]:
        return self._rows(self._call("GET", f"/admin/{path or what}"), what)

    def _rows(self, answer: Any, what: str) -> list[dict[str, Any]]:
        rows = answer.get(what) if isinstance(answer, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) and row.get("id") for row in rows):
            raise AdminError(f"{self.url} answered something else than a list of {what}; is it a router of Baton?")
        return rows

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        with self._open(method, path, body) as response:
            try:
                answer = json.loads(response.read() or b"null")
            except ValueError:
                raise AdminError(f"{self.url}{path} did not answer JSON; is it a router of Baton?") from None
        silent = answer.get("unreachable_routers") if isinstance(answer, dict) else None
        self.unreachable_routers = [str(router) for router in silent] if isinstance(silent, list) else []
        return answer

    @contextlib.contextmanager
    def _open(self, method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[httpx.Response]:
        tls = self._context() if self._has_tls else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            with (
                httpx.Client(timeout=self._timeout_s, trust_env=False, verify=tls) as http,
                http.stream(method, self.url + path, headers=self._headers, json=body) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    response.read()
                    raise _refusal(self.url, path, response)
                yield response
        except httpx.HTTPError as error:
            raise AdminError(f"cannot ask the router at {self.url}: {_reason(error)}{self._hint(error)}") from None

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise AdminError(f"ca_file: {self._ca_file} cannot be used: {error.strerror}") from None

    def _hint(self, error: httpx.HTTPError) -> str:
        if isinstance(_cause(error), ssl.SSLCertVerificationError):
            return "; --ca-file names the CA that has certified it"
        if isinstance(error, httpx.RemoteProtocolError) and not self._has_tls:
            return "; if it speaks TLS, its URL begins with https://"
        if isinstance(error, httpx.ConnectError):
            return "; --url (or BATON_ADMIN_URL) names another router"
        return ""


class RouterRefusedError(AdminError):
    """The router answered with an error in OpenAI's shape, which has this code."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__(message)
        self.code = code


def _refusal(url: str, path: str, response: httpx.Response) -> AdminError:
    message, code = _error_of(response.content)
    status = response.status_code
    if status == httpx.codes.METHOD_NOT_ALLOWED or (status == httpx.codes.NOT_FOUND and code in {None, "unknown_url"}):
        return NotSupportedError(
            f"the router at {url} has no {path.partition('?')[0]}; is it of this version of Baton?"
        )
    if status == httpx.codes.UNAUTHORIZED:
        return AdminError(f"the router at {url} refuses the admin token; set BATON_ADMIN_TOKEN or --admin-token")
    return RouterRefusedError(f"the router at {url} answered {status}: {message or response.reason_phrase}", code)


def _error_of(body: bytes) -> tuple[str, str | None]:
    """An error's message, as one line, and its code; ``("", None)`` where the body has another shape."""
    with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError):
        error = json.loads(body)["error"]
        return " ".join(str(error["message"]).split()), error.get("code")
    return "", None


def named(given: str, rows: Iterable[Mapping[str, Any]], what: str) -> str:
    """The id of the one listed row whose name is ``given``, or whose id begins with it. Raises AdminError when there is
    none, or several.
    """
    names = {str(row["id"]): str(row.get("name", "")) for row in rows}
    try:
        return resolve(given, names, what, names)
    except IdError as error:
        raise AdminError(str(error)) from None


def _segment(text: str) -> str:
    """One segment of a path. Dots are escaped as well: httpx would take ``..`` for the parent folder."""
    return quote(text, safe="").replace(".", "%2E")


def _lines(response: httpx.Response) -> Iterator[bytes]:
    """Yields lines, split at newlines only: httpx's own ``iter_lines`` splits at every line end of Unicode, which JSON
    may hold.
    """
    rest = b""
    for data in response.iter_raw():
        *lines, rest = (rest + data).split(b"\n")
        yield from lines


def _snapshot(data: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        answer = json.loads(data)
        if isinstance(answer, dict) and "requests" in answer and "workers" in answer:
            return answer
    raise NotSupportedError("the router's live view is of another version")


def _ids(answer: Any) -> list[str]:
    if not isinstance(answer, dict) or not isinstance(answer.get("aborted"), list):
        raise AdminError("the router did not say what it aborted")
    return [str(request_id) for request_id in answer["aborted"]]


def _reason(error: httpx.HTTPError) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "it did not answer in time"
    cause = _cause(error)
    if isinstance(cause, ssl.SSLError):
        return why(cause)
    if cause is not None:
        return cause.strerror or str(cause) or type(cause).__name__
    return f"no HTTP answer ({error or type(error).__name__})"


def _cause(error: BaseException) -> OSError | None:
    """The error of the system that httpx and httpcore have wrapped; None where there is none."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, OSError):
        inner = inner.__cause__ or inner.__context__  # httpcore raises its own errors "from None"
    return inner
