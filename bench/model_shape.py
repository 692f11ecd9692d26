"""The sizes of a dense decoder, and how fast a machine can run it at best.

Pure arithmetic, no torch: a decode step reads every weight and every cached key and value once, a
prefill multiplies every weight with every token. Whichever of memory and multiplications takes
longer is the limit; nothing else is counted, so no engine can reach it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

_BF16_BYTES = 2


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A Qwen3-like decoder with tied embeddings, in bfloat16."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int

    @classmethod
    def of_folder(cls, folder: Path) -> "ModelShape":
        """As the config.json of a model's folder says."""
        config = json.loads((folder / "config.json").read_text())
        return cls(
            vocab_size=config["vocab_size"],
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=config["head_dim"],
            intermediate_size=config["intermediate_size"],
        )

    @property
    def num_layer_weights(self) -> int:
        """Weights of all linear layers between embedding and output."""
        heads = 2 * self.num_heads + 2 * self.num_kv_heads
        per_layer = self.hidden_size * (self.head_dim * heads + 3 * self.intermediate_size)
        return per_layer * self.num_layers

    @property
    def num_weights(self) -> int:
        """Weights that one decode step multiplies with: the output layer included."""
        return self.num_layer_weights + self.vocab_size * self.hidden_size

    @property
    def weight_bytes(self) -> int:
        return self.num_weights * _BF16_BYTES

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_kv_heads * self.head_dim * self.num_layers * _BF16_BYTES

    def attention_flops(self, num_pairs: float) -> float:
        """Multiply-adds of so many (query, key) pairs, through all layers, as operations."""
        return 4.0 * num_pairs * self.num_heads * self.head_dim * self.num_layers


@dataclass(frozen=True, slots=True)
class MachineRates:
    """The machine's best rates: `read_bytes_per_s` of a buffer as large as the weights."""

    read_bytes_per_s: float
    flops: float


def prefill_limit_s(shape: ModelShape, rates: MachineRates, num_tokens: int) -> float:
    """Shortest time to compute one prompt, and the logits of its last token."""
    pairs = num_tokens * num_tokens / 2
    linear = 2.0 * (shape.num_layer_weights * num_tokens + shape.vocab_size * shape.hidden_size)
    return (linear + shape.attention_flops(pairs)) / rates.flops


def decode_limit_s(
    shape: ModelShape, rates: MachineRates, batch: int, num_context_tokens: float
) -> float:
    """Shortest time of one step that makes one token for each of `batch` sequences."""
    read = shape.weight_bytes + batch * num_context_tokens * shape.kv_bytes_per_token
    flops = batch * (2.0 * shape.num_weights + shape.attention_flops(num_context_tokens))
    return max(read / rates.read_bytes_per_s, flops / rates.flops)


def run_limit_s(
    shape: ModelShape, rates: MachineRates, batch: int, num_prompt: int, num_output: int
) -> float:
    """Shortest time of `batch` whole requests; no prompt token comes from a cache."""
    prefill_s = batch * prefill_limit_s(shape, rates, num_prompt)
    step_s = decode_limit_s(shape, rates, batch, num_prompt + num_output / 2)
    return prefill_s + max(0, num_output - 1) * step_s
