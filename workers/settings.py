"""The settings of a worker. How the fields become flags, variables and YAML keys: ``core/process/settings.py``."""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path, PurePath
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from baton_serve.core.process.settings import LOOPBACK, ProcessSettings
from baton_serve.core.protocol.id_syntax import ADAPTER_NAME, KEY_ID
from baton_serve.core.protocol.worker import MAX_ADAPTERS, Role
from baton_serve.workers.limits import MAX_RANKS

#: Milliseconds between two announcements to the registry; a change of load is announced sooner.
ANNOUNCE_INTERVAL_MS = 250
_ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})


class WorkerSettings(ProcessSettings):
    """One worker: one engine behind one public and one internal port."""

    section: ClassVar[str] = "worker"

    # What it is.
    role: Role = Field(Role.BOTH, description="What the worker is for: prefill, decode or both.")
    model: str = Field(..., min_length=1, description="Model: a local Hugging Face folder or a hub id.")
    name: str = Field(
        "",
        pattern=rf"^({KEY_ID.pattern})?$",
        description="What people may call it by in an operator's commands, beside its id. baton up names its workers.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit of a hub id. Default: its main branch.")
    served_model_name: str | None = Field(
        None, description="Name that clients call the model by. Default: the last part of the model's path or id."
    )

    lora: tuple[str, ...] = Field(
        (),
        max_length=MAX_ADAPTERS,
        description="LoRA adapters, each as name=folder with the files that peft writes. Clients ask for one by its "
        "name, as for a model; P and D of a request need the same one under it.",
    )

    # How it reads what the model says.
    tool_call_parser: Literal[
        "auto", "none", "hermes", "qwen3_coder", "llama3_json", "mistral", "deepseek_v3", "deepseek_v31", "openai"
    ] = Field(
        "auto",
        description="How the model writes calls of tools, by the name of vLLM's parser. auto: by the response template "
        "that comes with the model, or by its chat template; none: calls are text.",
    )
    reasoning_parser: Literal["auto", "none", "deepseek_r1", "qwen3", "mistral", "openai_gptoss"] = Field(
        "auto",
        description="How the model writes its reasoning, which answers then have apart as reasoning_content and as "
        "reasoning. auto and none: as for tool_call_parser.",
    )

    # Where it listens.
    host: str = Field("127.0.0.1", description="Address of the public port (/v1, /metrics, /load, /health).")
    port: int = Field(0, ge=0, le=65535, description="The public port; 0 lets the system choose.")
    internal_host: str | None = Field(
        None, description="Address of the internal port (handshake, abort, drain). Default: the same as host."
    )
    internal_port: int = Field(0, ge=0, le=65535, description="The internal port; 0 lets the system choose.")
    advertise_host: str | None = Field(
        None,
        description="Host name or address at which routers and other workers reach this one. "
        "Default: host, or this machine's name where host means all addresses.",
    )

    # How it computes.
    tp: int = Field(
        1, ge=1, le=MAX_RANKS, description="Ranks (processes) that the model is split over: tensor parallelism."
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="Where the model runs: auto, cpu, cuda (each rank on a GPU of its own) or cuda:N "
        "(a single rank on that one).",
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Type of weights and cache. auto: float32 on a CPU, the checkpoint's own on a GPU."
    )
    attention: Literal["auto", "in-place", "gather"] = Field(
        "auto",
        description="How attention reads the KV cache: in-place, or by gather, which copies it together for every "
        "layer of every step. auto: in place on a GPU, and on a CPU where Numba has programs for the type. in-place is "
        "refused where there is no GPU.",
    )
    decode_graphs: Literal["auto", "on", "off"] = Field(
        "auto",
        description="Whether decode steps are recorded at the start as CUDA graphs. on is refused where this is not "
        "possible; auto then does without: with attention by gather, and on CPUs. auto also does without on workers "
        "that are for prefill only.",
    )
    torch_threads: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="CPU threads of the model, divided between its ranks. Default: OMP_NUM_THREADS for each rank "
        "where that is set, else one for each core, at most 8 for each rank.",
    )
    num_blocks: int | None = Field(
        None, ge=2, description="Blocks in the KV cache. Default: as many as kv_cache_bytes holds."
    )
    kv_cache_bytes: int | None = Field(
        None,
        ge=1,
        description="Bytes of the KV cache, all ranks together. Default: 1 GiB on a CPU, gpu_memory_fraction on a GPU.",
    )
    gpu_memory_fraction: float = Field(
        0.9, gt=0, le=1, description="Fraction of the GPU memory left after the weights that becomes KV cache."
    )
    block_size: int = Field(16, ge=1, le=1024, description="Tokens in one KV block; equal on all workers of a model.")
    max_num_seqs: int = Field(64, ge=1, le=65536, description="Sequences that run at once; more wait.")
    max_waiting: int = Field(1024, ge=1, description="Sequences that may wait; the next one is answered 429.")
    max_num_batched_tokens: int = Field(
        2048,
        ge=1,
        description="Tokens in one forward pass; longer prompts are prefilled in pieces. Not below max_num_seqs.",
    )
    max_model_len: int | None = Field(
        None,
        ge=2,
        description="Tokens of prompt and output together. Default: what the model was made for, with what its rotary "
        "embeddings (YaRN) are stretched by.",
    )
    generation_config: str = Field(
        "auto",
        min_length=1,
        description="Where the defaults of sampling come from that the model's makers recommend (temperature, top_p, "
        "top_k, min_p, repetition_penalty, max_new_tokens), as with vLLM. auto: generation_config.json of the model; "
        "none: the API's own defaults; else a folder with that file.",
    )

    # How long things are kept.
    registry_ttl_ms: int = Field(
        3000,
        ge=2 * ANNOUNCE_INTERVAL_MS,
        description="Milliseconds after its last announcement that a silent worker is forgotten.",
    )
    drain_timeout_s: float = Field(
        30.0, ge=0, description="Seconds that SIGTERM waits for running requests and leases before it leaves anyway."
    )
    handshake_timeout_s: float = Field(10.0, gt=0, description="Seconds one handshake with another engine may take.")
    read_timeout_s: float = Field(
        15.0,
        gt=0,
        description="Seconds after which a block read that neither ends nor fails is given up: the request fails over, "
        "its blocks stay out of use until the read has ended. With handshake_timeout_s, below the router's "
        "first_byte_timeout_s.",
    )
    step_timeout_s: float = Field(
        120.0,
        gt=0,
        description="Seconds after which ranks that have not answered a forward pass are taken for hung: the engine is "
        "dead, exits, and is started again by whoever runs it. Above what the longest one takes.",
    )
    start_timeout_s: float = Field(600.0, gt=0, description="Seconds that loading the model may take.")

    # What it accepts and says.
    allow_chat_template: bool = Field(
        False,
        description="Whether clients may send a chat_template of their own. It is a program that runs in Jinja's "
        "sandbox in this process: it can read nothing, but it can take as long as it likes.",
    )
    unsafe_disable_fence: bool = Field(
        False,
        description="DANGEROUS, for tests only: serve blocks that were read without comparing their versions.",
    )

    @field_validator("decode_graphs", mode="before")
    @classmethod
    def _word_again(cls, value: object) -> object:
        """A bare ``on`` or ``off`` in YAML is no word."""
        return ("on" if value else "off") if isinstance(value, bool) else value

    @field_validator("model")
    @classmethod
    def _without_tilde(cls, model: str) -> str:
        """Replace ``~``: a shell does not do it in a flag such as ``--model=~/m``."""
        return str(_at_home(model)) if model.startswith("~") else model

    @field_validator("generation_config")
    @classmethod
    def _whole_folder(cls, source: str) -> str:
        """Make a folder absolute; vLLM's word for none is taken too."""
        if source in ("auto", "none", "vllm"):
            return "none" if source == "vllm" else source
        return str(_at_home(source).absolute())

    @field_validator("lora")
    @classmethod
    def _adapters(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        """Make the folders absolute, so that they mean the same in the ranks, which have another current directory."""
        folders: dict[str, Path] = {}
        for entry in entries:
            name, is_given, folder = entry.partition("=")
            if not is_given or not folder or ADAPTER_NAME.fullmatch(name) is None:
                raise ValueError("an adapter is name=folder, and its name up to 128 letters, digits and any of ._:/@-")
            if name in folders:
                raise ValueError(f"there are two adapters named {name}")
            folders[name] = _at_home(folder).absolute()
        return tuple(f"{name}={folder}" for name, folder in folders.items())

    @model_validator(mode="after")
    def check(self) -> Self:
        """Check settings against each other: without an internal token, only this machine may reach the two ports."""
        if self.internal_token is None:
            for name, host in (("host", self.host), ("internal_host", self.bound_internal_host)):
                if not is_loopback(host):
                    raise ValueError(f"{name} is not a loopback address: that needs an internal_token")
        if self.max_num_batched_tokens < self.max_num_seqs:
            batched, seqs = self.max_num_batched_tokens, self.max_num_seqs
            raise ValueError(f"max_num_batched_tokens ({batched}) must not be below max_num_seqs ({seqs})")
        if self.model_name in self.adapters:
            raise ValueError(f"an adapter has the name of the model, {self.model_name}")
        if self.tp > 1 and self.device.startswith("cuda:"):
            raise ValueError(f"{self.tp} ranks need a GPU each, and device {self.device} is one; cuda is all")
        if self.device == "cpu" and self.attention == "in-place":
            raise ValueError("attention in-place needs a GPU, and device is cpu")
        if self.decode_graphs == "on" and self.attention == "gather":
            raise ValueError("decode_graphs need attention in place")
        if self.decode_graphs == "on" and self.device == "cpu":
            raise ValueError("decode_graphs need a GPU, and device is cpu")
        return self

    @property
    def bound_internal_host(self) -> str:
        return self.host if self.internal_host is None else self.internal_host

    @property
    def model_name(self) -> str:
        return self.served_model_name or PurePath(self.model).name or self.model

    @property
    def adapters(self) -> dict[str, str]:
        return {name: folder for name, _, folder in (entry.partition("=") for entry in self.lora)}

    def advertised(self, bound: str) -> str:
        """The host under which routers and other workers reach a port bound to ``bound``."""
        if self.advertise_host is not None:
            return self.advertise_host
        return socket.gethostname() if bound in _ANY_ADDRESS else bound


def _at_home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ValueError("there is no such user's home") from None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a port on ``host``, a name or an address."""
    if host in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
