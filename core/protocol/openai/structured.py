"""Structured output: which form an answer must have. OpenAI's ``response_format`` and vLLM's ``structured_outputs``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, StrictBool, StrictStr

from baton_serve.core.protocol.errors import BadRequestError, invalid_value
from baton_serve.core.protocol.openai.objects import StrictObject, Unsupported

#: Baton's own bounds. They do not bound what compiling takes, as 90 bytes can ask for gigabytes. That is why workers
#: try each form in a process that they can do without (``workers/grammar/trial``).
MAX_FORM_BYTES = 1 << 16
MAX_CHOICES = 1024
#: References and rules are followed one inside the other, and each level takes a part of a thread's stack.
MAX_REFERENCES = 512
MAX_RULE_MARKS = 1024

Kind = Literal["json_schema", "regex", "choice", "grammar"]


@dataclass(frozen=True, slots=True)
class Form:
    """What an answer must look like. ``text``: a JSON schema, a regular expression, a JSON list of texts or a grammar.

    ``param`` is the client's parameter, for complaints.
    """

    kind: Kind
    text: str
    param: str


#: The schema of JSON's objects.
_ANY_OBJECT = '{"type":"object"}'


class JsonSchema(StrictObject):
    """``response_format.json_schema``. The schema is enforced with and without ``strict``."""

    name: Annotated[StrictStr, Field(min_length=1, max_length=512)]
    description: StrictStr | None = None
    the_schema: Annotated[dict[StrictStr, Any], Field(alias="schema")]
    strict: StrictBool | None = None


class ResponseFormat(StrictObject):
    """OpenAI's ``response_format``."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    def form(self) -> Form | None:
        """The form; None for any text. Raises BadRequestError."""
        param = "response_format"
        if self.type != "json_schema":
            if self.json_schema is not None:
                raise invalid_value(param, f"'{param}.json_schema' is only allowed with the type json_schema.")
            return Form("json_schema", _ANY_OBJECT, param) if self.type == "json_object" else None
        if self.json_schema is None:
            name = f"{param}.json_schema"
            raise BadRequestError(
                f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter"
            )
        return bounded(Form("json_schema", _encoded(self.json_schema.the_schema, param), param))


class StructuredOutputs(StrictObject):
    """vLLM's ``structured_outputs``: one of the kinds."""

    the_json: Annotated[dict[StrictStr, Any] | StrictStr | None, Field(alias="json")] = None
    regex: Annotated[StrictStr, Field(min_length=1)] | None = None
    choice: (
        Annotated[
            list[Annotated[StrictStr, Field(min_length=1)]],
            Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True),
        ]
        | None
    ) = None
    grammar: Annotated[StrictStr, Field(min_length=1)] | None = None
    json_object: StrictBool | None = None
    structural_tag: Unsupported = None

    def form(self) -> Form:
        """The form. Raises BadRequestError."""
        param = "structured_outputs"
        forms: list[Form] = []
        if self.the_json is not None:
            forms.append(Form("json_schema", _schema_text(self.the_json, f"{param}.json"), f"{param}.json"))
        if self.regex is not None:
            forms.append(Form("regex", self.regex, f"{param}.regex"))
        if self.choice is not None:
            forms.append(Form("choice", _encoded(self.choice, f"{param}.choice"), f"{param}.choice"))
        if self.grammar is not None:
            forms.append(Form("grammar", self.grammar, f"{param}.grammar"))
        if self.json_object:
            forms.append(Form("json_schema", _ANY_OBJECT, f"{param}.json_object"))
        if len(forms) != 1:
            raise invalid_value(
                param, f"'{param}' has exactly one of json, regex, choice, grammar and json_object, got {len(forms)}."
            )
        return bounded(forms[0])


def form_of(
    response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None, *, ignore_eos: bool
) -> Form | None:
    """The form that a request asks for; None: any text. Raises BadRequestError."""
    asked = None if response_format is None else response_format.form()
    if structured_outputs is not None:
        if asked is not None:
            raise invalid_value("structured_outputs", "'response_format' and 'structured_outputs' exclude each other.")
        asked = structured_outputs.form()
    if asked is not None and ignore_eos:
        raise invalid_value("ignore_eos", "'ignore_eos' excludes structured output, which ends where its form ends.")
    return asked


def _schema_text(schema: dict[str, Any] | str, param: str) -> str:
    if isinstance(schema, str):
        if len(schema) > MAX_FORM_BYTES:
            raise _too_long(param)
        try:
            schema = orjson.loads(schema)
        except orjson.JSONDecodeError as error:
            raise invalid_value(param, f"'{param}' is not JSON: {error}.") from error
        if not isinstance(schema, dict):
            raise invalid_value(param, f"'{param}' is not a JSON object.")
    return _encoded(schema, param)


def _encoded(value: object, param: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except (orjson.JSONEncodeError, TypeError) as error:
        raise invalid_value(param, f"'{param}' cannot be written as JSON: {error}.") from error


def bounded(form: Form, *, has_schemas_only: bool = False) -> Form:
    """The form, if it is small enough to be compiled. Raises BadRequestError.

    ``has_schemas_only``: its rules are Baton's own, around a client's JSON schemas, whose colons begin no rules.
    """
    if len(form.text.encode("utf-8", "replace")) > MAX_FORM_BYTES:
        raise _too_long(form.param)
    if form.kind in ("json_schema", "grammar") and form.text.count("$ref") > MAX_REFERENCES:
        raise invalid_value(form.param, f"'{form.param}' has more than {MAX_REFERENCES} references.")
    if form.kind == "grammar" and not has_schemas_only and form.text.count(":") > MAX_RULE_MARKS:
        raise invalid_value(form.param, f"'{form.param}' has more than {MAX_RULE_MARKS} colons, which begin its rules.")
    return form


def _too_long(param: str) -> BadRequestError:
    return BadRequestError(
        f"'{param}' may have {MAX_FORM_BYTES} bytes as JSON.", param=param, code="string_above_max_length"
    )
