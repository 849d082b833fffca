"""What clients may send to ``/v1/chat/completions`` and ``/v1/completions``, validated.

Every parameter OpenAI documents either works or is refused by name; none is accepted and ignored. A value that asks for
what happens anyway is accepted. Router and worker validate with the same models: the router so that bad input never
reaches a worker, the worker because it does not trust what reaches it.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import orjson
from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from baton_serve.core.protocol.errors import BadRequestError, invalid_value
from baton_serve.core.protocol.excerpts import excerpt
from baton_serve.core.protocol.openai.hints import Hints
from baton_serve.core.protocol.openai.messages import Message, plain_messages
from baton_serve.core.protocol.openai.objects import (
    INTEGERS_END,
    UNSUPPORTED,
    UNSUPPORTED_TYPE,
    StrictObject,
    Unsupported,
    Whole,
)
from baton_serve.core.protocol.openai.structured import Form, ResponseFormat, StructuredOutputs, form_of
from baton_serve.core.protocol.openai.templates import TemplateFields
from baton_serve.core.protocol.openai.tools import ToolChoice, ToolOfChoice

#: OpenAI's own bounds.
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
#: vLLM's default bound, for completions too; OpenAI's is 5 there.
MAX_COMPLETION_LOGPROBS = 20
MAX_PROMPT_LOGPROBS = 20
#: Baton's own bounds. Stop tokens are a set; the words are looked for, and the allowed tokens gathered, at every token.
MAX_STOP_TOKENS = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_CHARS = 256
MAX_ALLOWED_TOKENS = 16384
MAX_SALT_CHARS = 512
#: Baton's own bound, for each stop string: text that may become one is held back, and searched from every position when
#: it does not.
MAX_STOP_CHARS = 4096
#: Most tokens of a completion whose client names no limit; a chat without a limit continues while there is room.
COMPLETION_MAX_TOKENS = 16
#: Baton's own bound: priorities are from -MAX_PRIORITY to MAX_PRIORITY.
MAX_PRIORITY = 1000
#: Documented by OpenAI, refused here unless the value is one that changes nothing. The error names the first of them in
#: this order. Those below the empty line are vLLM's.
_REFUSED: dict[str, tuple[Any, ...]] = {
    "functions": (None, []),
    "audio": (None,),
    "best_of": (None, 1),
    "function_call": (None, "none", "auto"),
    "logits_processors": (None, []),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "n": (None, 1),
    "prediction": (None,),
    "prompt_cache_retention": (None, "in_memory"),
    "store": (None, False),
    "web_search_options": (None,),
    "early_stopping": (None, False),
    "ec_transfer_params": (None, {}),
    "include_reasoning": (None, True),
    "length_penalty": (None, 1.0),
    "media_io_kwargs": (None, {}),
    "mm_processor_kwargs": (None, {}),
    "return_prompt_text": (None, False),
    "return_token_offsets": (None, False),
    "stream_interval": (None, 1),
    "truncation_side": (None, "left"),
    "use_beam_search": (None, False),
    "vllm_xargs": (None, {}),
    "watermarking": (None, False),
}
#: The same in chats. vLLM has an ``echo`` there that means something else.
_REFUSED_IN_CHATS = {**_REFUSED, "echo": (None, False)}

#: Fields that change nothing for a worker, whatever they say or because only such values are accepted. They need not be
#: passed on.
NO_EFFECT = frozenset({*_REFUSED, *Hints.model_fields})

Number = StrictFloat | StrictInt
TokenId = Annotated[StrictInt, Field(ge=0)]
Priority = Annotated[Whole, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
#: The client's own name for its user.
UserName = Annotated[StrictStr, Field(max_length=512)]
Seed = Annotated[Whole, Field(ge=-INTEGERS_END, lt=INTEGERS_END)]


class StreamOptions(StrictObject):
    """``stream_options``. Events are not padded to hide their length."""

    include_usage: StrictBool = False
    include_obfuscation: Unsupported = False
    #: With ``include_usage``: every event has the usage so far.
    continuous_usage_stats: StrictBool = False

    @model_validator(mode="after")
    def _check_usage(self) -> StreamOptions:
        if self.continuous_usage_stats and not self.include_usage:
            raise PydanticCustomError("continuous_usage", "'continuous_usage_stats' needs 'include_usage' to be true")
        return self


class _Request(Hints, StrictObject):
    """What both endpoints share. The fields from ``top_k`` on are vLLM's extensions."""

    model: StrictStr
    stream: StrictBool = False
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[Number, Field(ge=0)] | None = None
    top_p: Annotated[Number, Field(gt=0, le=1)] | None = None
    stop: StrictStr | Annotated[list[StrictStr], Field(fail_fast=True)] | None = None
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] | None = None
    logit_bias: dict[StrictStr, Annotated[Number, Field(ge=-100, le=100)]] | None = None
    seed: Seed | None = None
    #: Which form the answer must have; vLLM's ``structured_outputs`` knows more kinds.
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    #: Shown in the admin listing and usable as a filter there.
    user: UserName | None = None
    safety_identifier: UserName | None = None

    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    min_p: Annotated[Number, Field(ge=0, le=1)] | None = None
    #: Bounded away from 0, because logits are divided by it.
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=10)] | None = None
    min_tokens: Annotated[Whole, Field(ge=0)] | None = None
    ignore_eos: StrictBool = False
    #: Sampling one of these ends the answer, also with ``ignore_eos``.
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] | None = None
    #: Whether the text ends with the stop string, or the text of the stop token, that ended it.
    include_stop_str_in_output: StrictBool = False
    #: Texts that the answer may not have, token by token, with and without a space before them.
    bad_words: (
        Annotated[
            list[Annotated[StrictStr, Field(min_length=1, max_length=MAX_BAD_WORD_CHARS)]],
            Field(max_length=MAX_BAD_WORDS, fail_fast=True),
        ]
        | None
    ) = None
    #: The only tokens of the answer.
    allowed_token_ids: (
        Annotated[list[TokenId], Field(min_length=1, max_length=MAX_ALLOWED_TOKENS, fail_fast=True)] | None
    ) = None
    #: Whether special tokens have no text.
    skip_special_tokens: StrictBool = True
    #: Whether two added tokens that follow each other have the decoder's space between them.
    spaces_between_special_tokens: StrictBool = True
    #: The answer has ``prompt_token_ids``, and each choice or event ``token_ids``, the sampled tokens.
    return_token_ids: StrictBool = False
    #: In logprobs a token is named ``token_id:5``, not by its text.
    return_tokens_as_token_ids: StrictBool = False
    #: The last so many tokens of the prompt are used; -1: as many as leave room for the answer.
    truncate_prompt_tokens: Annotated[Whole, Field(ge=-1)] | None = None
    #: Whether the tokenizer puts its own tokens around the text. None: around a text, not around a chat.
    add_special_tokens: StrictBool | None = None
    #: Requests share cached blocks only with requests of the same salt.
    cache_salt: Annotated[StrictStr, Field(min_length=1, max_length=MAX_SALT_CHARS)] | None = None
    #: Which request that waits gets a worker first: lower first, as with vLLM, then older.
    priority: Priority = 0
    #: The answer has the logprobs of the prompt's tokens, and of this many most likely ones in the place of each.
    prompt_logprobs: Annotated[Whole, Field(ge=0, le=MAX_PROMPT_LOGPROBS)] | None = None
    #: Between router and workers only; the router strips what clients send.
    kv_transfer_params: dict[str, Any] | None = None

    @property
    def stop_strings(self) -> list[str]:
        """``stop`` as a list."""
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else list(self.stop)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_in_chunks(self) -> bool:
        """Whether every chunk of a stream has the usage so far."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats

    @property
    def form(self) -> Form | None:
        """The form that the answer must have; None: any text. Raises BadRequestError, but not after ``validate``."""
        return form_of(self.response_format, self.structured_outputs, ignore_eos=self.ignore_eos)

    @property
    def is_about_prompt(self) -> bool:
        """Whether its answer is about its prompt, so that the worker that computes the prompt has to answer it all."""
        return self.num_prompt_logprobs is not None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Logprobs of the prompt's tokens, and of this many most likely ones in the place of each; None: none."""
        return self.prompt_logprobs

    def _complain(self) -> None:
        """Check the rules between fields; raises BadRequestError."""
        _ = self.form
        if self.prompt_logprobs is not None and self.stream:
            raise invalid_value("prompt_logprobs", "'prompt_logprobs' is not available in streams.")
        if self.stream_options is not None and not self.stream:
            raise invalid_value("stream_options", "'stream_options' is only allowed with 'stream'.")
        stops = self.stop_strings
        if any(len(stop) > MAX_STOP_CHARS for stop in stops):
            raise BadRequestError(
                f"A string of 'stop' may have at most {MAX_STOP_CHARS} characters.",
                param="stop",
                code="string_above_max_length",
            )
        if "" in stops:
            raise BadRequestError("A stop string must not be empty.", param="stop", code="empty_string")
        for key in self.logit_bias or {}:
            if not (key.isascii() and key.isdigit()):
                raise invalid_value("logit_bias", "Keys of 'logit_bias' are token ids.")
        if self.truncate_prompt_tokens == 0:
            raise invalid_value("truncate_prompt_tokens", "'truncate_prompt_tokens' is a number of tokens, or -1.")
        if self._min_tokens_too_many:
            raise invalid_value("min_tokens", "'min_tokens' is more than 'max_tokens'.")

    @property
    def max_new_tokens(self) -> int | None:
        """The most tokens that the client wants; None: as many as fit."""
        return self.max_tokens

    @property
    def limit_param(self) -> str:
        """The name of the parameter that gives ``max_new_tokens``."""
        return "max_tokens"

    @property
    def _min_tokens_too_many(self) -> bool:
        """Whether ``min_tokens`` exceeds ``max_tokens``. Never on the prefill leg: it is for one token, and its
        ``min_tokens`` is the whole request's.
        """
        if not self.min_tokens or self.max_new_tokens is None:
            return False
        prefill_leg = (self.kv_transfer_params or {}).get("do_remote_decode") is True
        return self.min_tokens > self.max_new_tokens and not prefill_leg


class ChatRequest(TemplateFields, _Request):
    """Body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    tool_choice: ToolChoice | None = None
    #: False: the answer has one call at most.
    parallel_tool_calls: StrictBool = True
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    logprobs: StrictBool = False
    top_logprobs: Annotated[Whole, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def limit_param(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def num_logprobs(self) -> int | None:
        """Logprobs of sampled tokens and of this many most likely ones; 0: of sampled tokens only; None: none."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def _complain(self) -> None:
        super()._complain()
        self.check_template(self.messages)
        if self.top_logprobs and not self.logprobs:
            raise invalid_value("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
        self._complain_of_choice()

    @property
    def forced_tools(self) -> list[dict[str, Any]] | None:
        """The tools of which one must be called; None: none has to be."""
        choice = self.tool_choice
        if choice in (None, "none", "auto") or (tools := self.tool_objects) is None:
            return None
        return [
            tool for tool in tools if not isinstance(choice, ToolOfChoice) or tool["function"]["name"] == choice.name
        ]

    def _complain_of_choice(self) -> None:
        choice = self.tool_choice
        if not self.tools:
            if choice not in (None, "none", "auto"):
                raise invalid_value("tool_choice", "'tool_choice' is only allowed with 'tools'.")
        elif isinstance(choice, ToolOfChoice) and all(tool.function.name != choice.name for tool in self.tools):
            raise invalid_value(
                "tool_choice", f"'tool_choice' names '{excerpt(choice.name)}', which is none of 'tools'."
            )
        if self.forced_tools is None:
            return
        if self.form is not None:
            raise invalid_value("tool_choice", "'tool_choice' forces a call, so the answer cannot have another form.")
        if self.ignore_eos:
            raise invalid_value("ignore_eos", "'ignore_eos' excludes a forced call, which ends the answer.")


class CompletionRequest(_Request):
    """Body of ``POST /v1/completions``. ``prompt``: one string, or one prompt as token ids."""

    prompt: StrictStr | Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
    #: 0: the answer is about the prompt only.
    max_tokens: Annotated[Whole, Field(ge=0)] | None = None
    #: Whether the answer begins with the prompt.
    echo: StrictBool = False
    logprobs: Annotated[Whole, Field(ge=0, le=MAX_COMPLETION_LOGPROBS)] | None = None
    #: What comes after the answer: for models that have tokens for it, and a prompt that is a text.
    suffix: StrictStr | None = None

    @property
    def num_logprobs(self) -> int | None:
        """Logprobs of sampled tokens and of this many most likely ones; 0: of sampled tokens only; None: none."""
        return self.logprobs

    @property
    def is_about_prompt(self) -> bool:
        return self.echo or super().is_about_prompt

    @property
    def num_prompt_logprobs(self) -> int | None:
        asked = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((number for number in asked if number is not None), default=None)

    def _complain(self) -> None:
        super()._complain()
        if self.max_tokens == 0 and not self.is_about_prompt:
            raise BadRequestError(
                "'max_tokens' may be 0 only with 'echo' or 'prompt_logprobs': nothing else is to be answered.",
                param="max_tokens",
                code="integer_below_min_value",
            )
        if self.echo and self.suffix:
            raise invalid_value("suffix", "'echo' and 'suffix' exclude each other.")


Request = ChatRequest | CompletionRequest
R = TypeVar("R", ChatRequest, CompletionRequest)


def validate(kind: type[R], body: dict[str, Any]) -> R:
    """Check a parsed body; raises BadRequestError that names the parameter at fault."""
    refused = _REFUSED if kind is CompletionRequest else _REFUSED_IN_CHATS
    for name, harmless in refused.items():
        if name in body and not any(_is_same(body[name], value) for value in harmless):
            raise _refuse(name, harmless)
    biases = body.get("logit_bias")
    if isinstance(biases, dict) and len(biases) > MAX_LOGIT_BIAS:  # before pydantic complains about each of them
        raise BadRequestError(
            f"At most {MAX_LOGIT_BIAS} tokens in 'logit_bias'.", param="logit_bias", code="object_above_max_properties"
        )
    if kind is CompletionRequest:
        body = _of_one_prompt(body)
    try:
        request = kind.model_validate({k: v for k, v in body.items() if k not in refused and v is not None})
    except ValidationError as error:
        raise blame(error, body) from None
    request._complain()
    return request


def simplify(request: Request, body: dict[str, Any]) -> None:
    """Rewrite ``body``, from which ``request`` was made, into a form with the same meaning that every engine
    understands.
    """
    for name, value in body.items():
        if type(value) is float and type(whole := getattr(request, name, None)) is int:
            body[name] = whole
    if isinstance(request, ChatRequest):
        body["messages"] = plain_messages(request.messages, body["messages"])
        return
    body["prompt"] = request.prompt
    if body.get("logprobs") is False:
        del body["logprobs"]


def _of_one_prompt(body: dict[str, Any]) -> dict[str, Any]:
    """Replace a list of one prompt by the prompt, and ``logprobs: false`` by None. Raises BadRequestError for several
    prompts.
    """
    if body.get("logprobs") is False:
        body = {**body, "logprobs": None}
    prompt = body.get("prompt")
    if not (isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)):
        return body
    if len(prompt) > 1:
        raise BadRequestError(
            f"Only one prompt in a request is supported here, got {len(prompt)}; send one request each.",
            param="prompt",
            code="unsupported_parameter",
        )
    return {**body, "prompt": prompt[0]}


def _is_same(given: Any, value: Any) -> bool:
    """Whether two values are the same in JSON, where 1.0 is 1, but 0 is not false, as it is in Python."""
    return bool(given == value) and isinstance(given, bool) == isinstance(value, bool)


def _refuse(name: str, harmless: tuple[Any, ...]) -> BadRequestError:
    """The error for a refused parameter. It names the accepted values, except those that mean the same as no value."""
    taken = " or ".join(orjson.dumps(value).decode() for value in harmless if value not in (None, "", [], {}))
    message = f"Only {name}={taken} is supported here." if taken else f"'{name}' is not supported here."
    return BadRequestError(message, param=name, code="unsupported_parameter")


#: JSON's words for pydantic's types of error about a wrong type.
_EXPECTED = {
    "string_type": "a string",
    "bool_type": "a boolean",
    "int_type": "an integer",
    "float_type": "a number",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
}
_JSON_NAMES = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
    list: "an array",
    dict: "an object",
}
#: OpenAI's codes for values out of bounds; the kind of number is put in front.
_BOUNDS = {
    "greater_than": "below_min_value",
    "greater_than_equal": "below_min_value",
    "less_than": "above_max_value",
    "less_than_equal": "above_max_value",
}
#: Words of pydantic about the length of a list that are left out of the error.
_AFTER = " after validation"
_CODES = {
    "string_too_long": "string_above_max_length",
    "too_short": "empty_array",
    "too_many_keys": "object_above_max_properties",
    UNSUPPORTED_TYPE: "unsupported_parameter",
    "too_long": "array_above_max_length",
}


def blame(error: ValidationError, body: dict[str, Any]) -> BadRequestError:
    """The most specific complaint of pydantic in OpenAI's words.

    For a union, pydantic complains about every branch. The client meant the branch whose check got furthest: into the
    value, or at least past the value's type.
    """
    complaints = [(_path(details, body), details) for details in error.errors(include_url=False)]
    path, first = max(complaints, key=lambda it: (len(it[0]), it[1]["type"] not in _EXPECTED))
    param = excerpt("".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip("."))
    kind = first["type"]
    if kind == "missing":
        return BadRequestError(
            f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter"
        )
    if kind == "extra_forbidden":
        return BadRequestError(f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
    if kind == UNSUPPORTED:
        return BadRequestError(f"'{param}' is not supported here.", param=param, code="unsupported_parameter")
    value = first["input"]
    if kind == "int_type" and isinstance(value, float) and abs(value) >= INTEGERS_END:
        return _too_large(param, is_below=value < 0)
    if kind in _EXPECTED:
        wanted = " or ".join(
            dict.fromkeys(_EXPECTED[d["type"]] for p, d in complaints if p == path and d["type"] in _EXPECTED)
        )
        got = _JSON_NAMES.get(type(value), "null")
        message = f"Invalid type for '{param}': expected {wanted}, but got {got} instead."
        return BadRequestError(message, param=param, code="invalid_type")
    code = _CODES.get(kind, "invalid_value")
    if kind == "too_long" and isinstance(value, dict):
        code = _CODES["too_many_keys"]
    if kind in _BOUNDS:
        code = f"{'integer' if isinstance(value, int) else 'decimal'}_{_BOUNDS[kind]}"
    complaint = first["msg"].lower().replace(_AFTER, "")
    return BadRequestError(f"Invalid value for '{param}': {complaint}.", param=param, code=code)


def _too_large(param: str, *, is_below: bool) -> BadRequestError:
    """The error for an integer of more than 64 bits, which the reader of JSON has made a decimal."""
    bound, code = ("at least", "integer_below_min_value") if is_below else ("at most", "integer_above_max_value")
    limit = -INTEGERS_END if is_below else INTEGERS_END - 1
    return BadRequestError(f"Invalid value for '{param}': an integer is {bound} {limit}.", param=param, code=code)


def _path(details: ErrorDetails, body: dict[str, Any]) -> list[int | str]:
    """The place in the body: pydantic's path without the names that pydantic gives to the branches of unions."""
    path: list[int | str] = []
    here: Any = body
    for part in details["loc"]:
        inside = isinstance(here, list) and isinstance(part, int) and part < len(here)
        if inside or (isinstance(here, dict) and part in here):
            here = here[part]
            path.append(part)
        elif details["type"] == "missing" and part == details["loc"][-1]:
            path.append(part)
    return path
