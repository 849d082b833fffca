"""The tools of a request: which of them the model is offered, as functions of the chat.

Tools that the client runs are offered: functions and custom tools, also in namespaces, shells, patches and a search for
tools. Tools that only OpenAI's servers could run are left out, and so are unknown kinds: agents send such tools with
every request and do without. The response's ``tools`` are the offered ones. A tool that would give the model what the
client has put on a server is refused, because an answer without it is another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, StrictBool, StrictStr
from pydantic_core import PydanticCustomError

from baton_serve.core.protocol.openai.objects import UNSUPPORTED_TYPE, CountedObject, without_nulls
from baton_serve.core.protocol.openai.tools import MAX_TOOLS, FunctionName, Parameters
from baton_serve.router.dialects.objects import ByType
from baton_serve.router.dialects.responses.calls import CLIENT_RUN, CUSTOM, FUNCTION, CallShape

#: Tools that read stores, connect to servers, or control machines that the client names.
_REFUSED = frozenset({"file_search", "mcp", "code_interpreter", "computer", "computer_use", "computer_use_preview"})


class Offered(NamedTuple):
    """A tool that the model may call. ``name`` and ``namespace`` are the client's names."""

    shape: CallShape
    name: str
    namespace: str | None
    #: The function of the chat.
    function: dict[str, Any]

    def call(self, arguments: str) -> dict[str, Any]:
        """The fields of an item that say what is called."""
        shape = self.shape
        fields = {"type": shape.item, shape.key: shape.read(arguments), **shape.more}
        if shape in (FUNCTION, CUSTOM):
            fields["name"] = self.name
        if self.namespace is not None:
            fields["namespace"] = self.namespace
        return fields


def chat_name(name: str, namespace: str | None) -> str:
    """What the function is called in the chat: no chat template knows namespaces."""
    return f"{namespace}__{name}" if namespace else name


class _Tool(CountedObject):
    description: StrictStr | None = None

    def offered(self, namespace: str | None = None) -> Iterator[Offered]:
        """What the model is offered of it."""
        yield from ()


class _Named(_Tool):
    name: FunctionName
    #: Whether the model may call it, or only programs that the model writes, which Baton does not run.
    allowed_callers: Annotated[list[StrictStr], Field(fail_fast=True)] | None = None

    def _offered(self, shape: CallShape, namespace: str | None, more: dict[str, Any]) -> Iterator[Offered]:
        if self.allowed_callers is None or "direct" in self.allowed_callers:
            function = {"name": chat_name(self.name, namespace), "description": self.description, **more}
            yield Offered(shape, self.name, namespace, without_nulls(function))


class FunctionTool(_Named):
    """A function of the client's. ``strict`` changes nothing: forced calls always follow the schema."""

    type: Literal["function"]
    parameters: Parameters | None = None
    strict: StrictBool | None = None

    def offered(self, namespace: str | None = None) -> Iterator[Offered]:
        return self._offered(FUNCTION, namespace, {"parameters": self.parameters, "strict": self.strict})


class _InputFormat(CountedObject):
    type: Literal["text", "grammar"]
    syntax: StrictStr = ""
    definition: StrictStr = ""


class CustomTool(_Named):
    """A tool that takes one text. A grammar for it is told to the model, and not enforced."""

    type: Literal["custom"]
    format: _InputFormat | None = None

    def offered(self, namespace: str | None = None) -> Iterator[Offered]:
        about = self.description or ""
        if self.format is not None and self.format.type == "grammar":
            about += f"\n\nThe input has to follow this grammar ({self.format.syntax}):\n{self.format.definition}"
        return self._offered(CUSTOM, namespace, {"description": about.strip() or None, "parameters": CUSTOM.parameters})


class NamespaceTool(_Tool):
    """Tools with a common name before their own."""

    type: Literal["namespace"]
    name: FunctionName
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]

    def offered(self, namespace: str | None = None) -> Iterator[Offered]:
        for tool in self.tools:
            yield from tool.offered(self.name)


class _Environment(CountedObject):
    type: StrictStr


class ClientTool(_Tool):
    """A tool of OpenAI's that the client runs, if it does not ask a server to."""

    type: Literal["local_shell", "shell", "apply_patch", "tool_search"]
    environment: _Environment | None = None
    execution: StrictStr | None = None
    parameters: Parameters | None = None

    def offered(self, namespace: str | None = None) -> Iterator[Offered]:
        is_client_run = self.environment is None or self.environment.type == "local"
        if self.type == "tool_search":
            is_client_run = self.execution == "client"
        if is_client_run:
            shape = CLIENT_RUN[self.type]
            told = {"description": self.description or shape.about, "parameters": self.parameters or shape.parameters}
            yield Offered(shape, self.type, None, {"name": self.type, **told})


class OtherTool(_Tool):
    """A tool that the model is not offered."""

    type: StrictStr


def _check_type(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in _REFUSED:
        raise PydanticCustomError(UNSUPPORTED_TYPE, "tools of type '{type}' are not supported here", {"type": kind})
    return value


Tool = Annotated[
    FunctionTool | CustomTool | NamespaceTool | ClientTool | OtherTool,
    ByType(OtherTool),
    BeforeValidator(_check_type),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)]
