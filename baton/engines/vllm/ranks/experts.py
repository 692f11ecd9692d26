"""Expert parallelism on CPUs: each rank has some of the experts of a mixture, whole.

vLLM 0.32.0 gives its kernel for CPUs the numbers that experts have in the model, also in a rank
that has only some of them: it reads behind its weights and crashes. Here the kernel gets the
rank's own numbers. An expert that another rank has counts nothing in this one's sum; the ranks'
sums are added by vLLM, as without expert parallelism.
"""

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts


def own_experts(
    topk_ids: torch.Tensor, topk_weights: torch.Tensor, expert_map: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The rank's numbers of the chosen experts, and their weights, both `[num_tokens, top_k]`.

    `expert_map` has the rank's number of each expert of the model, or -1.
    """
    ids = expert_map[topk_ids.long()].to(topk_ids.dtype)
    return ids.clamp(min=0), topk_weights.masked_fill(ids < 0, 0)


def divide_experts() -> None:
    """Let vLLM's kernel for CPUs compute in this rank, which has some of the experts.

    A step raises ValueError where experts do not weigh their sums.
    """
    compute = CPUUnquantizedExperts.apply

    def apply(self: Any, *, expert_map: torch.Tensor | None, **parts: Any) -> None:
        if expert_map is not None:
            if parts["apply_router_weight_on_input"]:
                raise ValueError("expert parallelism: experts weigh their input, not their sums")
            own = own_experts(parts["topk_ids"], parts["topk_weights"], expert_map)
            parts["topk_ids"], parts["topk_weights"] = own
        compute(self, expert_map=expert_map, **parts)

    CPUUnquantizedExperts.apply = apply
