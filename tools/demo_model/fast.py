"""Two pieces of the training step that are several times faster on a CPU than the stock ones.

Measured on one core with AVX512-bf16: attention forward and backward of 24 sequences of 85 tokens 8.5 ms against 29.8 ms
for `scaled_dot_product_attention`; the loss of 811 answer tokens over 4,096 entries 5 ms against 20 ms.
"""

from typing import Any

import torch
from torch.nn import functional
from transformers import AttentionInterface

SHORT = 512  # tokens; above this the tiled kernel is faster


def plain_attention(
    module: torch.nn.Module,
    query: torch.Tensor,  # [num_sequences, num_heads, num_tokens, head_size]
    key: torch.Tensor,  # [num_sequences, num_kv_heads, num_tokens, head_size]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention without padding mask, for training only."""
    repeat = query.shape[1] // key.shape[1]
    key = key.repeat_interleave(repeat, dim=1)
    value = value.repeat_interleave(repeat, dim=1)
    width = query.shape[2]
    if width > SHORT or query.is_cuda:
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling
        )
    else:
        scores = (query * scaling) @ key.transpose(-1, -2)
        future = torch.full((width, width), float("-inf"), dtype=scores.dtype).triu(1)
        mixed = torch.softmax(scores + future, -1, dtype=scores.dtype) @ value
    return mixed.transpose(1, 2).contiguous(), None


class MeanCrossEntropy(torch.autograd.Function):
    """Mean cross entropy over rows, computed in float32; the gradient is made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(len(targets), device=logits.device)
        scores = logits.float()
        scores = scores - scores.amax(1, keepdim=True)
        chosen = scores[rows, targets]
        chances = scores.exp_()
        sums = chances.sum(1, keepdim=True)
        chances.div_(sums)
        chances[rows, targets] -= 1.0
        ctx.save_for_backward(chances.div_(len(targets)).to(logits.dtype))
        return (sums.squeeze(1).log() - chosen).mean()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0].to(gradient.dtype), None


def mean_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return MeanCrossEntropy.apply(logits, targets)


AttentionInterface.register("demo_training", plain_attention)
