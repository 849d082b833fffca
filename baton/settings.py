"""Settings of ``baton up`` and of the commands that ask a router."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from baton_serve.baton.processes.vllm.extra_args import ExtraArgs
from baton_serve.core.process.settings import Settings
from baton_serve.core.protocol.addresses import worker_url
from baton_serve.workers.limits import MAX_RANKS


class UpSettings(Settings):
    """What ``baton up`` starts. All other settings of routers and workers are in sections of their own."""

    section: ClassVar[str] = "up"

    model: str | None = Field(
        None,
        description="Folder or Hugging Face hub id of the model. Unset: the worker section's, else the demo model.",
    )
    engine: Literal["baton", "vllm"] = Field(
        "baton", description="Engine of all workers: Baton's own, or vLLM servers, which have to be installed."
    )
    vllm: str | None = Field(
        None,
        min_length=1,
        description="Where vLLM is: a vllm script, a Python that has it, or the folder of its environment. "
        "Unset: vllm on PATH.",
    )
    vllm_args: str = Field(
        "",
        description="Arguments for every vLLM server, as in a shell; what stands after -- is added to them.",
    )
    stock: bool = Field(
        False,
        description="Have vLLM servers load vLLM's own NixlConnector, not Baton's connector: then nothing notices a "
        "read that comes too late, and leases are not in Redis.",
    )
    lora: tuple[str, ...] = Field(
        (), description="LoRA adapters of every worker (its lora), each as name=folder. Unset: the worker section's."
    )
    generation_config: str | None = Field(
        None,
        min_length=1,
        description="Where the defaults of sampling of every worker come from (its generation_config): auto, none or a "
        "folder. Unset: the worker section's.",
    )
    prefill: int = Field(1, ge=1, le=64, description="Number of prefill workers.")
    decode: int = Field(1, ge=1, le=64, description="Number of decode workers.")
    tp: int | None = Field(
        None,
        ge=1,
        le=MAX_RANKS,
        description="Ranks of each worker (its tp): tensor parallelism. Unset: the worker section's, else 1.",
    )
    prefill_tp: int | None = Field(None, ge=1, le=MAX_RANKS, description="Ranks of each prefill worker. Unset: as tp.")
    decode_tp: int | None = Field(None, ge=1, le=MAX_RANKS, description="Ranks of each decode worker. Unset: as tp.")
    max_model_len: int | None = Field(
        None,
        ge=2,
        description="Tokens of prompt and output together, of every worker (its max_model_len). "
        "Unset: the worker section's, else what the model was made for.",
    )
    routers: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Router processes (the router's processes). Unset: the router section's, else 1.",
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address the router listens on.")
    port: int = Field(8000, ge=0, le=65535, description="Port of the OpenAI API; 0 lets the system choose.")
    api_keys: tuple[SecretStr, ...] = Field(
        (), description="Keys that clients may use (the router's api_keys). Unset: the router section's, else none."
    )
    redis_url: str | None = Field(
        None,
        min_length=1,
        repr=False,
        description="An existing Redis: a URL as the router's. Unset: a private one is started, "
        "unless it is for stock vLLM servers behind one router process, which need none.",
    )
    redis_password: SecretStr | None = Field(
        None, description="Password of that Redis, where redis_url does not have it."
    )
    internal_token: SecretStr | None = Field(
        None, description="Secret between router and workers. Unset: a random one for each start."
    )
    log_dir: Path | None = Field(
        None, description="Directory for the log files of all processes. Unset: a new one in the temporary directory."
    )
    threads_per_worker: int | None = Field(
        None,
        ge=1,
        description="CPU threads of each worker (its torch_threads). "
        "Unset: OMP_NUM_THREADS for each rank where that is set, else the CPUs divided between all ranks.",
    )
    start_timeout_s: float = Field(
        1800.0, gt=0, description="How long a process may take to become ready, in seconds (a download included)."
    )
    stop_timeout_s: float = Field(
        10.0, gt=0, description="How long a process may take to stop by itself before it is killed, in seconds."
    )
    drain_timeout_s: float = Field(
        600.0, ge=0, description="How long a worker that baton scale stops may go on with what it has, in seconds."
    )

    @field_validator("vllm_args")
    @classmethod
    def _vllm_args_are_usable(cls, text: str) -> str:
        ExtraArgs(text)
        return text

    @model_validator(mode="after")
    def _vllm_is_for_vllm(self) -> Self:
        if self.engine != "vllm" and (self.vllm is not None or self.vllm_args or self.stock):
            raise ValueError("vllm, vllm_args and stock need engine=vllm")
        if self.engine == "vllm" and self.lora:
            raise ValueError("lora is for Baton's own engine: vLLM's arguments are --enable-lora and --lora-modules")
        if self.engine == "vllm" and self.generation_config is not None:
            raise ValueError("generation_config is for Baton's own engine: vLLM has an argument of this name")
        return self


class AdminSettings(Settings):
    """How the operator's commands (``baton requests``, ``baton abort``, ...) reach a router."""

    section: ClassVar[str] = "admin"

    url: str = Field(
        "http://127.0.0.1:8000",
        description="Base URL of the router to ask: http(s)://host:port, or a port of this machine.",
    )
    admin_token: SecretStr | None = Field(
        None,
        description="The router's admin token, where it asks for one. Unset: the one that a baton up of this user on "
        "this machine has made.",
    )
    ca_file: Path | None = Field(
        None,
        description="CA (PEM) that has certified the router, where its URL is https:// and this machine does not "
        "trust it anyway.",
    )
    timeout_s: float = Field(10.0, gt=0, description="Longest wait for an answer of the router, seconds.")

    @field_validator("url")
    @classmethod
    def _url_is_usable(cls, url: str) -> str:
        return router_url(url)


def router_url(text: str) -> str:
    """The base URL of a router, from a URL or from the port of one on this machine. Raises ValueError."""
    try:
        return worker_url(f"127.0.0.1:{text}" if text.isdecimal() else text)
    except ValueError:
        raise ValueError("the router's address is http(s)://host:port") from None
