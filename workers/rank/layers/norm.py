"""RMS norms in few operations. Models write them as eight operations, of which most copy."""

from __future__ import annotations

from copy import deepcopy

import torch

from baton_serve.workers.rank.layers.row_programs import RowPrograms

#: How much each output of a norm may differ from that of the model's own, in roundings of its type.
_MAX_ROUNDINGS = 4
#: Sizes of the inputs of a trial. Only small inputs show where a norm adds its epsilon, only large ones where it clips.
_SCALES = (1e-4, 1.0, 1e2)


class FastRMSNorm(torch.nn.Module):
    """Scales inputs ``[..., size]`` to a mean square of 1, then by ``weight``."""

    weight: torch.Tensor

    def __init__(self, weight: torch.Tensor, eps: float, programs: RowPrograms | None) -> None:
        """Without programs, or for types that they do not take, torch computes it."""
        super().__init__()
        self.register_buffer("weight", weight.detach(), persistent=False)
        self.eps = eps
        self._programs = programs if programs is not None and programs.takes(weight.dtype) else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The scaled inputs, in the type of the inputs."""
        if self._programs is not None and inputs.dtype == self.weight.dtype:
            inputs = inputs.contiguous()
            outputs = torch.empty_like(inputs)
            self._programs.rms_norm(inputs, self.weight, outputs, self.eps)
            return outputs
        return torch.nn.functional.rms_norm(inputs, self.weight.shape, self.weight, self.eps)


def replace_norms(model: torch.nn.Module, programs: RowPrograms | None) -> None:
    """Replace each norm that computes the same as ``FastRMSNorm``, as a trial shows."""
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            faster = _faster(layer, programs)
            if faster is not None:
                setattr(module, name, faster)


def _faster(layer: torch.nn.Module, programs: RowPrograms | None) -> FastRMSNorm | None:
    weight = getattr(layer, "weight", None)
    eps = getattr(layer, "variance_epsilon", getattr(layer, "eps", None))
    if "RMSNorm" not in type(layer).__name__ or not isinstance(weight, torch.Tensor) or not isinstance(eps, float):
        return None
    faster = FastRMSNorm(weight, eps, programs)
    return faster if weight.dim() == 1 and _computes_the_same(layer, faster, programs) else None


def _computes_the_same(layer: torch.nn.Module, faster: FastRMSNorm, programs: RowPrograms | None) -> bool:
    """Whether both give the same outputs in their type, and inputs of any size as copies in float32.

    Roundings to a half type could hide a difference.
    """
    if not _is_equal(layer, faster, 1.0):
        return False
    layer, faster = deepcopy(layer).float(), FastRMSNorm(faster.weight.float(), faster.eps, programs)
    return all(_is_equal(layer, faster, scale) for scale in _SCALES)


def _is_equal(layer: torch.nn.Module, faster: FastRMSNorm, scale: float) -> bool:
    dtype, size = faster.weight.dtype, faster.weight.numel()
    inputs = torch.linspace(-2 * scale, 3 * scale, 3 * size, dtype=dtype, device=faster.weight.device).reshape(3, size)
    with torch.inference_mode():
        ours = faster(inputs)
        try:
            own = layer(inputs)
        except (TypeError, ValueError, IndexError, AttributeError, RuntimeError):
            # These are Python's and torch's words for a layer that wants more than one input or another shape.
            # Such a layer stays as it is.
            return False
    if not isinstance(own, torch.Tensor) or own.dtype != ours.dtype or own.shape != ours.shape:
        return False
    tolerance = _MAX_ROUNDINGS * torch.finfo(dtype).eps
    # Below the smallest normal number roundings do not get smaller.
    return torch.allclose(own, ours, rtol=tolerance, atol=tolerance * torch.finfo(dtype).tiny)
