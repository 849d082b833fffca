"""What the operator's commands ask a router: ``/admin``, over HTTP, from the standard library alone.

A command starts in a fraction of the time that an HTTP library takes to import.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from core.net.tls import why
from core.protocol.ids import IdError, resolve

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from baton.settings import AdminSettings

_OK = 200


class AdminError(Exception):
    """The router did not do what was asked; the message is one line for a person and holds no secret."""


class NotSupportedError(AdminError):
    """The router has no such call."""


class AdminClient:
    """Calls on one router. Every method raises AdminError."""

    def __init__(self, settings: AdminSettings) -> None:
        self.url = settings.url.rstrip("/")
        #: Ids of the routers whose share is missing in the last answer: they did not answer the one that was asked.
        self.unreachable_routers: list[str] = []
        self._place = urlsplit(self.url)
        self._timeout_s = settings.timeout_s
        self._ca_file = settings.ca_file
        token = settings.admin_token
        self._headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}

    def requests(self) -> list[dict[str, Any]]:
        """Live requests of all routers, oldest first, as ``GET /admin/requests`` gives them."""
        return self._listing("requests")

    def ended(self, outcome: str | None = None) -> list[dict[str, Any]]:
        """Those of all routers that ended last, newest first; with ``outcome`` only those that ended so."""
        return self._listing("ended", "requests/ended" + (f"?outcome={outcome}" if outcome else ""))

    def workers(self) -> list[dict[str, Any]]:
        """Known workers, as ``GET /admin/workers`` gives them."""
        return self._listing("workers")

    def abort(self, request_id: str) -> list[str]:
        """End the one request that is meant; its id. Raises RefusedError when there is none, or not one."""
        return _ids(self._call("POST", f"/admin/requests/{quote(request_id, safe='')}/abort"))

    def abort_matching(self, wanted: Mapping[str, Any]) -> list[str]:
        """End every request that matches the filter; their ids."""
        return _ids(self._call("POST", "/admin/abort", wanted))

    def tell_worker(self, worker_id: str, what: str) -> bool:
        """``what`` is ``drain`` or ``resume``. False: the worker cannot be told, so the routers were."""
        answer = self._call("POST", f"/admin/workers/{quote(worker_id, safe='')}/{what}")
        return bool(answer["told"])

    def live(self) -> Generator[dict[str, Any], None, None]:
        """The snapshots of ``GET /admin/live``, as they come; AdminError also when none comes for ``timeout_s``."""
        with self._open("GET", "/admin/live", None) as response:
            for line in response:
                if line.startswith(b"data:"):
                    yield _snapshot(line[len(b"data:") :])

    def _listing(self, what: str, path: str = "") -> list[dict[str, Any]]:
        answer = self._call("GET", f"/admin/{path or what}")
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
    def _open(self, method: str, path: str, body: Mapping[str, Any] | None) -> Iterator[http.client.HTTPResponse]:
        connection = self._connection()
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, self._place.path + path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != _OK:
                raise _refusal(self.url, path, response)
            yield response
        except (OSError, http.client.HTTPException) as error:
            raise AdminError(f"cannot ask the router at {self.url}: {_reason(error)}{self._hint(error)}") from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        host, port = self._place.hostname or "", self._place.port
        if self._place.scheme != "https":
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=self._context())

    def _context(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:
            raise AdminError(f"ca_file: {self._ca_file} cannot be used: {error.strerror}") from None

    def _hint(self, error: OSError | http.client.HTTPException) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return "; --ca-file names the CA that has certified it"
        if isinstance(error, http.client.RemoteDisconnected) and self._place.scheme == "http":
            return "; if it speaks TLS, its URL begins with https://"
        return ""


class RefusedError(AdminError):
    """An error in OpenAI's shape."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__(message)
        self.code = code


def _refusal(url: str, path: str, response: http.client.HTTPResponse) -> AdminError:
    message, code = _error_of(response.read())
    if response.status == 405 or (response.status == 404 and code in {None, "unknown_url"}):
        return NotSupportedError(
            f"the router at {url} has no {path.partition('?')[0]}; is it of this version of Baton?"
        )
    if response.status == 401:
        return AdminError(f"the router at {url} refuses the admin token; set BATON_ADMIN_TOKEN or --admin-token")
    return RefusedError(f"the router at {url} answered {response.status}: {message or response.reason}", code)


def _error_of(body: bytes) -> tuple[str, str | None]:
    """Message, as one line, and code of an error's body; empty and None where it has another shape."""
    with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError):
        error = json.loads(body)["error"]
        return " ".join(str(error["message"]).split()), error.get("code")
    return "", None


def named(given: str, rows: Iterable[Mapping[str, Any]], what: str) -> str:
    """The id of the one listed row that is meant; AdminError when none is, or not one."""
    try:
        return resolve(given, (str(row["id"]) for row in rows), what)
    except IdError as error:
        raise AdminError(str(error)) from None


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


def _reason(error: OSError | http.client.HTTPException) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, ssl.SSLError):
        return why(error)
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return f"no HTTP answer ({type(error).__name__})"
