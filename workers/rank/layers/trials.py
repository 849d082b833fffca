"""What modules of a model are called with, and whether a replacement gives the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from baton_serve.workers.rank.cache.attention import AttentionCall, attending
from baton_serve.workers.rank.layers.positions import max_positions

#: A trial computes this many tokens at a model's first positions, and as many at its last: some models scale their
#: queries by the position.
_NUM_PER_END = 4
_FIRST_POSITION = 5
#: A trial multiplies the inputs of these tokens by each of these. Clipping shows with large inputs only, and two
#: activations may differ for inputs of a certain size only.
_SCALES = (0.1, 1.0, 10.0, 100.0)
#: Allowed relative error of a replacement's outputs, for each token by itself.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 0.005}


class CallRecorder:
    """An ``Attend`` that keeps its last call. Each token attends to itself alone, so that the outputs of a module show
    its values, whatever the size of its scores.
    """

    last: AttentionCall | None = None

    def __call__(self, call: AttentionCall) -> torch.Tensor:
        self.last = call._replace(query=call.query.clone(), key=call.key.clone(), value=call.value.clone())
        return call.value.repeat_interleave(call.heads // call.kv_heads, 1).transpose(1, 2)


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call of a module."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def give(self, module: torch.nn.Module) -> tuple[Any, AttentionCall | None]:
        """The module's outputs, and what it passed to the attention function, if it did."""
        recorder = CallRecorder()
        with attending(recorder), torch.inference_mode():
            return module(*self.args, **self.kwargs), recorder.last

    @property
    def only(self) -> torch.Tensor | None:
        """The tensor that is the only argument; None: there are others."""
        found = self.args[0] if len(self.args) == 1 and not self.kwargs else None
        return found if isinstance(found, torch.Tensor) else None

    def scaled(self) -> Inputs:
        """The same with hidden states multiplied by ``_SCALES``: those of each token by all of them, if they are all
        there is, else by one of them in turn.
        """
        if self.only is not None:  # an expert of a mixture may be given a token or two
            return Inputs((torch.cat([self.only * scale for scale in _SCALES], dim=-2),), {})
        states = self.kwargs.get("hidden_states")
        if not isinstance(states, torch.Tensor):
            return self
        tokens = states.shape[-2]
        scales = states.new_tensor(_SCALES).repeat(tokens // len(_SCALES) + 1)[:tokens, None]
        return Inputs(self.args, {**self.kwargs, "hidden_states": states * scales})


def inputs_of(model: PreTrainedModel, modules: Iterable[torch.nn.Module]) -> dict[torch.nn.Module, Inputs]:
    """The inputs of these modules in a small forward pass of the model, scaled; modules that are not called are left
    out.
    """
    found: dict[torch.nn.Module, Inputs] = {}

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found[module] = Inputs(args, kwargs)

    hooks = [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
    try:
        positions = _positions(max_positions(model.config)).to(model.device)
        ids = torch.arange(3, 3 + positions.shape[1], device=model.device)[None] % model.config.vocab_size
        with attending(CallRecorder()), torch.inference_mode():
            model(input_ids=ids, position_ids=positions, use_cache=False)
            return {module: inputs.scaled() for module, inputs in found.items()}
    finally:
        for hook in hooks:
            hook.remove()


def _positions(num_positions: int | None) -> torch.Tensor:
    first = torch.arange(_FIRST_POSITION, _FIRST_POSITION + 2 * _NUM_PER_END)
    if num_positions:
        first[_NUM_PER_END:] = torch.arange(num_positions - _NUM_PER_END, num_positions)
        first %= num_positions
    return first[None]


def is_close(ours: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether both, ``[..., size]``, are equal but for roundings. If there are no numbers, that is not known.

    Tokens for which the model's own outputs are too large for their type show nothing.
    """
    if ours.shape != own.shape or ours.dtype != own.dtype or not own.numel():
        return False
    shows = own.isfinite().all(dim=-1)
    errors = (ours.float() - own.float()).norm(dim=-1) / own.float().norm(dim=-1).clamp(min=1e-30)
    return bool(shows.any()) and bool((errors <= TOLERANCE[own.dtype])[shows].all())
