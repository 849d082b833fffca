"""The names of parameters in errors: what a chat calls by one name, a dialect may call by another. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from baton_serve.core.protocol.errors import ApiError, BadRequestError

_CONVERSATION = "messages"


class RenamedError(ApiError):
    """An error of a chat, about a parameter of a dialect."""

    def __init__(self, error: ApiError, message: str, param: str | None) -> None:
        super().__init__(message, code=error.code, param=param, retry_after_s=error.retry_after_s)
        self.status = error.status
        self.type = error.type


class Names:
    """The parameters of one dialect, by their names in a chat. If two fit, the first counts."""

    def __init__(self, by_chat_name: Mapping[str, str]) -> None:
        self._by_chat_name = by_chat_name

    def renamed(self, error: ApiError) -> ApiError:
        """The same error about the dialect's parameter. Messages name parameters between quotes.

        Only the parameter of the error is renamed: what else is between quotes may be the client's. The place in a
        conversation is left out, as a chat has its messages in other places.
        """
        param = error.param
        if param is None:
            return RenamedError(error, error.message, None)
        renamed = self._param(param)
        message = error.message.replace(f"'{param}'", f"'{renamed}'")
        if "." not in param:  # a message may be about a field of the parameter
            message = message.replace(f"'{param}.", f"'{renamed}.")
        return RenamedError(error, message, renamed)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Rename what is raised inside about a chat that was made of the client's request."""
        try:
            yield
        except BadRequestError as error:
            raise self.renamed(error) from None

    def _param(self, param: str) -> str:
        if param.startswith(f"{_CONVERSATION}["):
            param = _CONVERSATION
        for old, new in self._by_chat_name.items():
            if param == old or param.startswith((f"{old}.", f"{old}[")):
                return new + param[len(old) :]
        return param
