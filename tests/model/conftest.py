"""Tiny random models of many architectures, and transformers' own answers to compare with."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from baton.engine.engine import Engine, EngineConfig
from baton.engine.messages import AddSequence, SamplingParams, StepEvents
from baton.engine.model.load import LoadedModel, LoadOptions, load_model
from baton.engine.model.torch_runner import TorchRunner
from baton.system.clock import SystemClock
from baton.wire.prefix_hash import block_hashes, root_hash

VOCAB = 512
MAX_LEN = 192
CACHE_KEY = b"k" * 32
TIE = 1e-4  # a smaller top-2 gap of the reference counts as a tie

_SMALL = {
    "vocab_size": VOCAB,
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
_HEAD = {"head_dim": 16}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
_WINDOW = {"sliding_window": 16}
_ROPE3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 48,
}
_MIXED_LAYERS = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

# name -> (configuration class, what differs from _SMALL)
ARCHITECTURES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("LlamaConfig", {}),
    "llama-rope3": ("LlamaConfig", {"rope_parameters": _ROPE3}),
    "qwen2-yarn": ("Qwen2Config", {"rope_parameters": _YARN}),
    "qwen3": ("Qwen3Config", _HEAD),
    "mistral-window": ("MistralConfig", _WINDOW),
    "gemma2": ("Gemma2Config", _HEAD | _WINDOW | {"query_pre_attn_scalar": 16}),
    "gemma3": ("Gemma3TextConfig", _HEAD | _WINDOW | _MIXED_LAYERS),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3-moe": ("Qwen3MoeConfig", _HEAD | _MOE | {"num_experts": 4}),
    "gpt-oss": ("GptOssConfig", _HEAD | _WINDOW | _MIXED_LAYERS | {"num_local_experts": 4}),
    "phi3": ("Phi3Config", {}),
    "olmo2": ("Olmo2Config", {}),
    "granite": ("GraniteConfig", {"attention_multiplier": 0.2, "logits_scaling": 2.0}),
    "cohere": ("CohereConfig", {}),
    "glm4": ("Glm4Config", _HEAD),
    "smollm3": ("SmolLM3Config", {}),
    "deepseek-v3": (
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 24,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        }
        | _MOE,
    ),
    "gpt-neox": ("GPTNeoXConfig", {}),
    "opt": ("OPTConfig", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
    "gpt2": ("GPT2Config", {"n_positions": MAX_LEN}),
}
# Architectures that paged attention cannot serve, and a word of the reason.
REFUSED: dict[str, tuple[str, dict[str, object], str]] = {
    "llama-dynamic": (
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}},
        "dynamic",
    ),
    "phi3-longrope": (
        "Phi3Config",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 64,
            },
        },
        "--max-model-len 64",
    ),
    "falcon": ("FalconConfig", {}, "FalconForCausalLM does not support replaceable attention"),
    "bloom": ("BloomConfig", {"n_head": 4, "n_layer": 2}, "BloomForCausalLM does not support"),
    "mamba": ("MambaConfig", {"state_size": 4}, "recurrent state"),
    "qwen3-next": (
        "Qwen3NextConfig",
        _MOE | {"num_experts": 4, "layer_types": ["linear_attention"] * 2 + ["full_attention"]},
        "Qwen3NextForCausalLM",
    ),
    "llama4-chunked": (
        "Llama4TextConfig",
        _HEAD | {"attention_chunk_size": 32, "num_local_experts": 2, "intermediate_size_mlp": 96},
        "neither causal nor a sliding window",
    ),
    "bert": ("BertConfig", {}, "BertSelfAttention"),
    "t5": ("T5Config", {"d_model": 64, "num_layers": 2}, "generates no text"),
}

ModelFolder = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Makes (once) a folder with a random model of the named architecture."""
    made: dict[str, Path] = {}

    def make(name: str, **changes: object) -> Path:
        key = f"{name}{sorted(changes.items())}"
        if key not in made:
            folder = tmp_path_factory.mktemp("models") / name
            config_name, differences = {**ARCHITECTURES, **REFUSED}[name][:2]
            config = getattr(transformers, config_name)(**(_SMALL | differences | changes))
            _random_model(config).save_pretrained(folder)
            made[key] = folder
        return made[key]

    return make


def _random_model(config: transformers.PretrainedConfig) -> transformers.PreTrainedModel:
    torch.manual_seed(1234)
    is_text = config.model_type != "t5"
    auto = transformers.AutoModelForCausalLM if is_text else transformers.AutoModel
    model = auto.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        # Norm weights, biases and sinks start as constants, which would hide mistakes.
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 0.0 if "norm" not in name else 1.0, 0.2)
    return model.eval()


@dataclass(frozen=True)
class Reference:
    """transformers' own eager attention and `generate` on the same folder."""

    model: transformers.PreTrainedModel

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> torch.Tensor:
        """Float32 logits after each token, `[num_tokens, vocab]`."""
        return self.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()

    def generate(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Greedy output tokens, never ended by an end token."""
        output = self.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
            max_new_tokens=num_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return output[0, len(prompt) :].tolist()

    def assert_same(self, prompt: list[int], expected: list[int], actual: list[int]) -> None:
        """Equal tokens; a first difference at a tie of the reference is printed and accepted."""
        assert len(actual) == len(expected)
        for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
            if ours == theirs:
                continue
            top = self.logits(prompt + expected[:index])[-1].topk(2)
            gap = float(top.values[0] - top.values[1])
            print(f"tie: token {index}: {ours} for {theirs}, top-2 gap {gap:.2e}")
            assert gap < TIE, (index, ours, theirs, gap, actual, expected)
            return


def reference_of(folder: Path) -> Reference:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    model.generation_config.eos_token_id = None
    return Reference(model.eval())


@pytest.fixture(params=sorted(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=sorted(REFUSED))
def refused_architecture(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Name, and what the refusal must say."""
    return request.param, REFUSED[request.param][2]


@pytest.fixture
def prompts() -> list[list[int]]:
    """Three prompts of 40, 7 and 23 tokens."""
    rng = np.random.default_rng(7)
    return [rng.integers(3, VOCAB, size).tolist() for size in (40, 7, 23)]


class EngineDriver:
    """A real Engine with a TorchRunner, stepped by hand until nothing is left to do."""

    def __init__(self, loaded: LoadedModel, *, num_blocks: int = 64, max_step_tokens: int) -> None:
        self.spec = loaded.kv_spec
        self.pool = memoryview(bytearray(num_blocks * self.spec.row_bytes))
        self.fingerprint = loaded.fingerprint
        runner = TorchRunner(loaded)
        runner.bind_pool(self.pool)
        config = EngineConfig(
            loaded.fingerprint, "tiny", "local", num_blocks, 8, max_step_tokens=max_step_tokens
        )
        self.engine = Engine(config, runner, SystemClock())
        self.tokens: dict[int, list[int]] = {}
        self.events: list[StepEvents] = []

    def request(self, seq_id: int, prompt: list[int], sampling: SamplingParams, kind="local"):
        token_ids = np.array(prompt, dtype="<u4").tobytes()
        root = root_hash(self.fingerprint, self.spec.block_size, CACHE_KEY)
        hashes = block_hashes(root, token_ids, self.spec.block_size, CACHE_KEY)
        credit = 1 << 30
        return AddSequence(
            seq_id, f"r{seq_id}", 0, kind, token_ids, 0, hashes, CACHE_KEY, sampling, credit
        )

    def run(self, commands: list[object]) -> list[StepEvents]:
        """Apply the commands and step until idle. Returns what happened."""
        news: list[StepEvents] = []
        while True:
            events = self.engine.step(commands)
            commands = []
            if events is not None:
                news.append(events)
                columns = zip(events.token_seq_ids, events.token_ids, strict=True)
                for seq_id, token in columns:
                    self.tokens.setdefault(seq_id, []).append(token)
            if not self.engine.has_work:
                self.engine.check_integrity()
                self.events += news
                return news

    def row(self, block_id: int) -> memoryview:
        """The bytes of one block."""
        size = self.spec.row_bytes
        return self.pool[block_id * size : (block_id + 1) * size]


def greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=num_tokens, ignore_eos=True)


@pytest.fixture
def drive() -> type[EngineDriver]:
    return EngineDriver


@pytest.fixture
def greedy_sampling() -> Callable[[int], SamplingParams]:
    return greedy


@pytest.fixture
def load_tiny(model_folder: ModelFolder) -> Callable[..., tuple[LoadedModel, Reference]]:
    """Loads an architecture through the product's own loader, and its reference."""

    def load(name: str, **changes: object) -> tuple[LoadedModel, Reference]:
        folder = model_folder(name, **changes)
        return load_model(str(folder), LoadOptions(dtype="float32")), reference_of(folder)

    return load
