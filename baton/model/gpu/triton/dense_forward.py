"""The forward pass of dense Llama-like decoders with ten kernels a layer instead of forty.

Takes the weights of a transformers model, whose modules go on working: products of the same input
become one, and all else between products is the kernels of `layers.py`. Rotation angles are the
model's own. Models of another build run through their modules (`gpu_forward.py`).
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from baton.model.gpu.step_inputs import StepInputs
from baton.model.gpu.triton.attention_backend import TritonAttention
from baton.model.gpu.triton.layers import add_rms_norm, rotate_and_store, silu_mul
from baton.model.load.load import LoadedModel
from baton.model.tensors.attention import AttentionForm
from baton.model.tensors.kv_pool import KVPool

# transformers' classes whose layers are: norm, rotated attention, add; norm, gated MLP, add.
FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


class _Product(NamedTuple):
    """One matrix product; `bias` may be None."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    @classmethod
    def of(cls, *layers: nn.Linear) -> "_Product":
        """The layers side by side; their weights become views of the one that is made."""
        if len(layers) == 1:
            return cls(layers[0].weight.data, None if layers[0].bias is None else layers[0].bias)
        weight = torch.cat([layer.weight.data for layer in layers])
        sizes = [layer.out_features for layer in layers]
        for layer, part in zip(layers, torch.split(weight, sizes), strict=True):
            layer.weight.data = part
        biases = [layer.bias for layer in layers]
        if all(bias is None for bias in biases):
            return cls(weight, None)
        parts = zip(biases, sizes, strict=True)
        filled = [weight.new_zeros(size) if bias is None else bias.data for bias, size in parts]
        return cls(weight, torch.cat(filled))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return F.linear(rows, self.weight, self.bias)


class _Layer(NamedTuple):
    before_attention: torch.Tensor  # the weight of a norm
    qkv: _Product
    head_norms: torch.Tensor | None  # [2, head_dim], of queries and keys
    output: _Product
    before_mlp: torch.Tensor
    gate_up: _Product
    down: _Product
    form: AttentionForm

    @classmethod
    def of(cls, layer: Any, form: AttentionForm) -> "_Layer":
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            before_attention=layer.input_layernorm.weight,
            qkv=_Product.of(attention.q_proj, attention.k_proj, attention.v_proj),
            head_norms=_head_norms(attention) if hasattr(attention, "q_norm") else None,
            output=_Product.of(attention.o_proj),
            before_mlp=layer.post_attention_layernorm.weight,
            gate_up=_Product.of(mlp.gate_proj, mlp.up_proj),
            down=_Product.of(mlp.down_proj),
            form=form,
        )


def _head_norms(attention: Any) -> torch.Tensor:
    return torch.stack([attention.q_norm.weight, attention.k_norm.weight])


class TritonDense:
    """A DeviceForward of one of FAMILY."""

    def __init__(self, loaded: LoadedModel, inputs: StepInputs, backend: TritonAttention) -> None:
        """Takes over `loaded.model`, which `is_dense`, and which is on its device."""
        base: Any = loaded.model.base_model
        self._inputs, self._backend = inputs, backend
        self._base = base
        self._eps = float(base.norm.variance_epsilon)
        layers = zip(base.layers, loaded.attention_forms, strict=True)
        self._layers = [_Layer.of(layer, form) for layer, form in layers]
        output: Any = loaded.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._logits = _Product.of(output)

    @staticmethod
    def is_dense(loaded: LoadedModel) -> bool:
        """This forward pass computes what the model does."""
        model: Any = loaded.model
        config = model.config
        is_known = type(model).__name__ in FAMILY and config.hidden_act == "silu"
        if not is_known or len(model.base_model.layers) != len(loaded.attention_modules):
            return False
        spec = loaded.kv_spec.layers[0]
        dims = {(layer.k_dim, layer.v_dim) for layer in loaded.kv_spec.layers}
        rotated = 2 * len(model.base_model.rotary_emb.inv_freq)
        plain = all(form.softcap is None and form.sinks is None for form in loaded.attention_forms)
        return dims == {(spec.k_dim, spec.k_dim)} and rotated == spec.k_dim and plain

    def bind(self, pool: KVPool) -> None:
        self._pool = pool
        self._backend.bind(pool)

    def logits(self, num_tokens: int, rows: torch.Tensor | None) -> torch.Tensor:
        """As DeviceForward."""
        hidden = F.embedding(self._inputs["token_ids"][:num_tokens], self._base.embed_tokens.weight)
        positions = self._inputs["positions"][:num_tokens]
        cos, sin = self._base.rotary_emb(hidden[None], positions[None])
        rotation = (cos[0].contiguous(), sin[0].contiguous())
        # The sum so far is kept apart from what the last product added to it.
        residual, added = hidden, None
        for index, layer in enumerate(self._layers):
            added = self._layer(index, layer, residual, added, rotation)
        assert added is not None
        if rows is not None:
            residual, added = residual[rows], added[rows]
        return self._logits(add_rms_norm(added, residual, self._base.norm.weight, self._eps))

    def _layer(
        self,
        index: int,
        layer: _Layer,
        residual: torch.Tensor,
        added: torch.Tensor | None,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        """Compute what the layer's MLP adds; `residual` is the sum before that, in place."""
        weight = layer.before_attention
        if added is None:
            rows = add_rms_norm(residual, None, weight, self._eps)
        else:
            rows = add_rms_norm(added, residual, weight, self._eps)
        pages = self._pool.keys[index], self._pool.values[index]
        slots = self._inputs["slots"]
        query = rotate_and_store(
            layer.qkv(rows), rotation, pages, slots, layer.head_norms, self._eps
        )
        attended = self._backend.attend_stored(index, query.transpose(0, 1), layer.form)
        added = layer.output(attended.flatten(1))
        rows = add_rms_norm(added, residual, layer.before_mlp, self._eps)
        return layer.down(silu_mul(layer.gate_up(rows)))
