"""Tiny random models, made and loaded once, and transformers' own answers to compare with."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from baton.engine.protocol.messages import AddSequence, SamplingParams, StepEvents
from baton.engine.protocol.runner import Runner
from baton.engine.step.engine import Engine, EngineConfig
from baton.model.cpu import build_native, native
from baton.model.load.load import LoadedModel, LoadOptions, load_model
from baton.model.torch_runner import TorchRunner
from baton.system.clock import SystemClock
from baton.system.compiler import find_compiler
from baton.testing.tiny_models import REFUSED, SERVED, VOCAB_SIZE, make_model
from baton.wire.prefix_hash import block_hashes, root_hash
from tests import needs

CACHE_KEY = b"k" * 32
TIE = 1e-4  # a smaller top-2 gap of the reference counts as a tie

ModelFolder = Callable[..., Path]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def compiled_kernels() -> None:
    """Builds what is not built yet."""
    if find_compiler() is None and not native.library_path().exists():
        pytest.skip(needs.COMPILER)
    assert build_native.main() == 0
    native.library.cache_clear()


@pytest.fixture(params=native.ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    """The instruction sets of this machine, one after the other."""
    assert native.library() is not None
    if request.param not in native.usable_isas():
        pytest.skip(needs.cpu_with(request.param))
    return str(request.param)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    """Makes (once) a folder with a random model of the named architecture."""
    made: dict[str, Path] = {}

    def make(name: str, **changes: object) -> Path:
        key = f"{name}{sorted(changes.items())}"
        if key not in made:
            folder = tmp_path_factory.mktemp("models") / name
            make_model(name, folder, **changes)
            if not made:
                keep_what_is_imported()
            made[key] = folder
        return made[key]

    return make


def keep_what_is_imported() -> None:
    """Keep the 150,000 objects of the modules that transformers has imported for a first model out
    of each collection of garbage: to make a runner is to collect."""
    gc.collect()
    gc.freeze()


@dataclass(frozen=True)
class Reference:
    """transformers' own eager attention and `generate` on the same folder."""

    model: transformers.PreTrainedModel
    _answers: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    @torch.inference_mode()
    def logits(self, tokens: list[int]) -> torch.Tensor:
        """Float32 logits after each token, `[num_tokens, vocab]`."""
        return self.model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()

    def generate(self, prompt: list[int], num_tokens: int) -> list[int]:
        """Greedy output tokens, never ended by an end token. Each question is computed once."""
        question = (num_tokens, *prompt)
        if question not in self._answers:
            self._answers[question] = self._generate(prompt, num_tokens)
        return list(self._answers[question])

    def _generate(self, prompt: list[int], num_tokens: int) -> list[int]:
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


def _reference_of(folder: Path, **arguments: object) -> Reference:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32, **arguments
    )
    model.generation_config.eos_token_id = None
    return Reference(model.eval())


@pytest.fixture
def reference_of() -> Callable[..., Reference]:
    """Loads the reference of a folder, with more arguments of `from_pretrained`."""
    return _reference_of


@pytest.fixture(params=sorted(SERVED))
def architecture(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=sorted(REFUSED))
def refused_architecture(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Name, and what the refusal must say."""
    return request.param, REFUSED[request.param].reason


@pytest.fixture
def prompts() -> list[list[int]]:
    """Three prompts of 40, 7 and 23 tokens."""
    rng = np.random.default_rng(7)
    return [rng.integers(3, VOCAB_SIZE, size).tolist() for size in (40, 7, 23)]


class EngineDriver:
    """A real Engine, by default with a TorchRunner, stepped by hand until nothing is left to do."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        num_blocks: int = 64,
        max_step_tokens: int,
        runner: Runner | None = None,
        num_draft_tokens: int = 0,
    ) -> None:
        self.spec = loaded.kv_spec
        self.fingerprint = loaded.fingerprint
        runner = runner or TorchRunner(loaded)
        config = EngineConfig(
            loaded.fingerprint,
            "tiny",
            "local",
            num_blocks,
            8,
            max_step_tokens=max_step_tokens,
            num_draft_tokens=num_draft_tokens,
            num_rows=num_blocks // 8,  # of a ring, if the runner has one
        )
        self.engine = Engine(config, runner, SystemClock())
        self.pool = memoryview(bytearray(self.engine.num_pool_rows * self.spec.row_bytes))
        self.engine.bind_pool(self.pool)
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
            # A GPU's blocks may still be on their way to the shared pool.
            if not self.engine.has_work and self.engine.next_deadline() is None:
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


def assert_same_weights(model: torch.nn.Module, expected: torch.nn.Module) -> None:
    """Bit for bit those that transformers reads without being told of a device."""
    found = dict(model.named_parameters()) | dict(model.named_buffers())
    known = dict(expected.named_parameters()) | dict(expected.named_buffers())
    assert found.keys() == known.keys()
    for name, tensor in known.items():
        assert torch.equal(found[name], tensor), name


@pytest.fixture(scope="session")
def load_tiny(model_folder: ModelFolder) -> Callable[..., tuple[LoadedModel, Reference]]:
    """Loads (once) an architecture through the product's own loader, and its reference.

    Its weights are compared once. A runner takes the module over from the one before it; nothing
    else may be done to it.
    """
    loaded: dict[Path, tuple[LoadedModel, Reference]] = {}

    def load(name: str, **changes: object) -> tuple[LoadedModel, Reference]:
        folder = model_folder(name, **changes)
        if folder not in loaded:
            model = load_model(str(folder), LoadOptions(dtype="float32"))
            loaded[folder] = model, _reference_of(folder)
            assert_same_weights(model.model, loaded[folder][1].model)
        return loaded[folder]

    return load
