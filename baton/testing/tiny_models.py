"""Tiny random models of many architectures, made to be compared with transformers.

The tables list the models that are served and those that are refused; docs/models.md lists the same
families. Weights are random, but spread so that outputs vary: a model that repeats one token hides
mistakes.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn

VOCAB_SIZE = 512
MAX_LEN = 192
_SENTENCE_MODULES = "sentence_transformers.models"

_Values = dict[str, Any]

_SMALL: _Values = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,  # tied random models repeat one token
}
_HEAD: _Values = {"head_dim": 16}
_WINDOW: _Values = {"sliding_window": 16}
_MIXED_LAYERS: _Values = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]
}
_MOE: _Values = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_LOCAL_MOE: _Values = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED_MOE: _Values = {
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
# Keys of 24 (16 and 8 with positions), values of another size.
_LATENT: _Values = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 20,
}
_ROPE3: _Values = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN: _Values = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 48,
}
_LONGROPE: _Values = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 64,
}
_VISION: _Values = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_PER_LAYER: _Values = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB_SIZE}
_SHARED_KV: _Values = {"num_hidden_layers": 6, "num_kv_shared_layers": 2} | {
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2
}

# name -> (configuration class, what differs from _SMALL)
SERVED: dict[str, tuple[str, _Values]] = {
    "afmoe": ("AfmoeConfig", _HEAD | _WINDOW | _MIXED_LAYERS | _MOE),
    "apertus": ("ApertusConfig", {}),
    "arcee": ("ArceeConfig", {}),
    "cohere": ("CohereConfig", {"logit_scale": 1.0}),
    "cohere2": ("Cohere2Config", _WINDOW | _MIXED_LAYERS | {"logit_scale": 1.0}),
    "deepseek-v2": ("DeepseekV2Config", _LATENT | _ROUTED_MOE),
    "deepseek-v3": ("DeepseekV3Config", _LATENT | _ROUTED_MOE),
    "ernie4.5": ("Ernie4_5Config", _HEAD),
    "ernie4.5-moe": (
        "Ernie4_5_MoeConfig",
        {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 48},
    ),
    "exaone4": ("Exaone4Config", _WINDOW | _MIXED_LAYERS),
    "gemma": ("GemmaConfig", _HEAD),
    "gemma2": ("Gemma2Config", _HEAD | _WINDOW | {"query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3TextConfig", _HEAD | _WINDOW | _MIXED_LAYERS),
    "gemma3-with-images": (
        "Gemma3Config",
        {
            "text_config": _HEAD | _WINDOW | _MIXED_LAYERS,
            "vision_config": _VISION,
            "tie_word_embeddings": False,
        },
    ),
    "gemma4-shared-kv": ("Gemma4TextConfig", _HEAD | _WINDOW | _PER_LAYER | _SHARED_KV),
    "glm4": ("Glm4Config", _HEAD),
    "glm4-moe": ("Glm4MoeConfig", _HEAD | _ROUTED_MOE),
    "gpt-bigcode": ("GPTBigCodeConfig", {"n_positions": MAX_LEN}),
    "gpt-neox": ("GPTNeoXConfig", {}),
    "gpt-oss": ("GptOssConfig", _HEAD | _WINDOW | _MIXED_LAYERS | {"num_local_experts": 4}),
    "gpt2": ("GPT2Config", {"n_positions": MAX_LEN}),
    "granite": ("GraniteConfig", {"attention_multiplier": 0.2, "logits_scaling": 2.0}),
    "granite-moe": ("GraniteMoeConfig", _LOCAL_MOE | {"attention_multiplier": 0.2}),
    "helium": ("HeliumConfig", _HEAD),
    "hunyuan": ("HunYuanDenseV1Config", _HEAD),
    "hunyuan-moe": ("HunYuanMoEV1Config", _HEAD | {"num_experts": 4, "moe_topk": 2}),
    "llama": ("LlamaConfig", {}),
    "llama-rope3": ("LlamaConfig", {"rope_parameters": _ROPE3}),
    "minicpm3": ("MiniCPM3Config", _LATENT),
    "minimax-m2": ("MiniMaxM2Config", _HEAD | _LOCAL_MOE),
    "ministral": ("MinistralConfig", _HEAD | _WINDOW | _MIXED_LAYERS),
    "mistral-window": ("MistralConfig", _WINDOW),
    "mixtral": ("MixtralConfig", _LOCAL_MOE),
    "nanochat": ("NanoChatConfig", {}),
    "nemotron": ("NemotronConfig", {}),
    "olmo": ("OlmoConfig", {}),
    "olmo2": ("Olmo2Config", {}),
    "olmo3": ("Olmo3Config", _WINDOW | _MIXED_LAYERS),
    "olmoe": ("OlmoeConfig", {"num_experts": 4, "num_experts_per_tok": 2}),
    "opt": ("OPTConfig", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "persimmon": ("PersimmonConfig", {}),
    "phi": ("PhiConfig", {}),
    "phi3": ("Phi3Config", {}),
    "phimoe": ("PhimoeConfig", _LOCAL_MOE),
    "qwen2-yarn": ("Qwen2Config", {"rope_parameters": _YARN}),
    "qwen2-moe": ("Qwen2MoeConfig", _MOE | {"shared_expert_intermediate_size": 48}),
    "qwen3": ("Qwen3Config", _HEAD),
    "qwen3-moe": ("Qwen3MoeConfig", _HEAD | _MOE),
    "seed-oss": ("SeedOssConfig", _HEAD),
    "smollm3": ("SmolLM3Config", {}),
    "starcoder2": ("Starcoder2Config", _WINDOW),
}


class Refused(NamedTuple):
    """A configuration that is not served, and words that its refusal must have."""

    config_class: str
    differences: _Values
    reason: str


_LINEAR: _Values = {"layer_types": ["linear_attention", "linear_attention", "full_attention"]}
REFUSED: dict[str, Refused] = {
    "llama-dynamic": Refused(
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
        "dynamic",
    ),
    "phi3-longrope": Refused(
        "Phi3Config",
        {"original_max_position_embeddings": 64, "rope_parameters": _LONGROPE},
        "--max-model-len 64",
    ),
    "falcon": Refused(
        "FalconConfig", {}, "FalconForCausalLM does not support replaceable attention"
    ),
    "bloom": Refused(
        "BloomConfig", {"n_head": 4, "n_layer": 2}, "BloomForCausalLM does not support"
    ),
    "mpt": Refused("MptConfig", {"d_model": 64, "n_heads": 4, "n_layers": 2}, "ALiBi"),
    "mamba": Refused("MambaConfig", {"state_size": 4}, "recurrent state"),
    "qwen3-next": Refused("Qwen3NextConfig", _MOE | _LINEAR, "recurrent state"),
    "qwen3.5": Refused("Qwen3_5TextConfig", _LINEAR, "recurrent state"),
    "minimax": Refused("MiniMaxConfig", _LOCAL_MOE | _LINEAR, "layers of type 'linear_attention'"),
    "lfm2": Refused(
        "Lfm2Config",
        {"layer_types": ["conv", "full_attention", "conv"]},
        "layers of type 'conv'",
    ),
    "deepseek-v3.2": Refused("DeepseekV32Config", _LATENT | _ROUTED_MOE, "has layers of type"),
    "diffllama": Refused("DiffLlamaConfig", {}, "attends more than once per token"),
    "llama4-chunked": Refused(
        "Llama4TextConfig",
        _HEAD | {"attention_chunk_size": 32, "num_local_experts": 2, "intermediate_size_mlp": 96},
        "neither causal nor a sliding window",
    ),
    "bert": Refused("BertConfig", {}, "BertSelfAttention"),
    "t5": Refused("T5Config", {"d_model": 64, "num_layers": 2}, "encoder-decoder"),
}


def make_model(name: str, folder: Path, **changes: Any) -> None:
    """Write a random float32 model of the named architecture into `folder`."""
    config_class, differences = SERVED[name] if name in SERVED else REFUSED[name][:2]
    if isinstance(text := differences.get("text_config"), dict):
        arguments = differences | {"text_config": _SMALL | text | changes}
    else:
        arguments = _SMALL | differences | changes
    config = getattr(transformers, config_class)(**arguments)
    random_model(config).save_pretrained(folder)


def random_model(config: transformers.PretrainedConfig) -> transformers.PreTrainedModel:
    """A model with the same weights each time, none of them at a value that would hide mistakes."""
    torch.manual_seed(1234)
    is_text = config.model_type != "t5"
    auto: Any = transformers.AutoModelForCausalLM if is_text else transformers.AutoModel
    model: transformers.PreTrainedModel = auto.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            # Norm weights, biases and sinks start as constants.
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    # Embeddings that are small against the layers' biases make all outputs alike.
    embeddings: Any = model.get_input_embeddings()
    nn.init.normal_(embeddings.weight, 0.0, 0.5)
    model.train(False)
    return model


def make_embedding_model(name: str, folder: Path, pooling: str, **changes: Any) -> None:
    """A model as `make_model` writes it, with sentence-transformers' description: its `pooling` is
    the name of a mode, such as "lasttoken", and its vectors are normalized."""
    make_model(name, folder, **changes)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"{_SENTENCE_MODULES}.{kind}"}
        for index, (kind, path) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    settings = {"word_embedding_dimension": 64, f"pooling_mode_{pooling}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(settings))


def make_reranker(name: str, folder: Path) -> None:
    """A model as `make_model` writes it, with a layer for one score instead of its output layer."""
    make_model(name, folder)
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["lm_head.weight"]
    torch.manual_seed(7)
    weights["score.weight"] = torch.randn(1, weights["model.norm.weight"].shape[0])
    save_file(weights, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    [causal] = config["architectures"]
    architectures = [causal.replace("ForCausalLM", "ForSequenceClassification")]
    config |= {"architectures": architectures, "id2label": {"0": "LABEL_0"}}
    (folder / "config.json").write_text(json.dumps(config))
