"""Small random LoRA adapters in PEFT's format, for tests."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 4
# Of the random matrices: large enough that answers differ, small enough that they stay text.
_SCALE = 0.07
_MODULES = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")


def write_adapter(
    folder: Path, model: Path, seed: int, rank: int = RANK, **other_config: int
) -> Path:
    """Write an adapter of a Llama into a folder, which is made; returns the folder. `other_config`
    makes it one of another model."""
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((model / "config.json").read_text()) | other_config
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module in _MODULES:
            num_in, num_out = _shape(config, module)
            prefix = f"base_model.model.model.layers.{layer}.{module}"
            for part, shape in (("A", (rank, num_in)), ("B", (num_out, rank))):
                values = rng.normal(0, _SCALE, shape).astype(np.float32)
                tensors[f"{prefix}.lora_{part}.weight"] = values
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": [module.rpartition(".")[2] for module in _MODULES],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def _shape(config: dict[str, int], module: str) -> tuple[int, int]:
    """The width of a module's input, and of its output."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    widths = {
        "q_proj": (hidden, config["num_attention_heads"] * head_dim),
        "v_proj": (hidden, config["num_key_value_heads"] * head_dim),
        "down_proj": (config["intermediate_size"], hidden),
    }
    return widths[module.rpartition(".")[2]]
