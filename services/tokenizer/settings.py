"""Settings of the tokenizer service, from `BATON_TOKENIZER_*`."""

from dataclasses import dataclass
from pathlib import Path

from services.tokenizer.syntaxes import Syntaxes

TOOL_SYNTAXES = (
    "generic", "hermes", "llama3", "mistral", "mistral_named", "deepseek", "deepseek_v31",
    "kimi_k2", "qwen3_coder", "glm45", "harmony",
)  # fmt: skip
REASONING_SYNTAXES = ("none", "think", "mistral", "harmony")
PREFIX = "BATON_TOKENIZER_"


@dataclass(frozen=True)
class Settings:
    """The service's settings; each field is one variable."""

    # The fleet's routers. The models of all ready workers are served, from files that workers give.
    router: tuple[str, ...] = ()
    # Models of its own, beside those: folders, each name=folder, or one whose name is the model's.
    models: tuple[str, ...] = ()
    # How a model writes tool calls, in place of what its chat template shows: name=syntax.
    tool_syntaxes: tuple[str, ...] = ()
    # How a model writes its reasoning, name=syntax; none: it stays part of the answer.
    reasoning_syntaxes: tuple[str, ...] = ()
    # Address of its gRPC server, host:port; port 0 = any free one.
    listen: str = "127.0.0.1:0"
    # Address of metrics, liveness and readiness, plain HTTP; port 0 = any free one.
    admin_listen: str = "127.0.0.1:0"
    # Threads that turn large prompts into tokens; one more keeps small ones going.
    encode_threads: int = 2
    # Prompts that are queued or in work. With one more, one of the tenant with the most bytes in
    # line is refused.
    max_concurrent: int = 256
    # Bytes of those prompts.
    max_queued_bytes: int = 64 * 1024 * 1024
    # Bytes of one prompt.
    max_prompt_bytes: int = 1024 * 1024
    # Longest stretch of a prompt without a break, in characters: the time of a tokenizer may grow
    # with its square.
    max_run_chars: int = 65_536
    # Child processes for each model that render chat templates, each one conversation at a time.
    template_children: int = 2
    # Conversations that wait for such a child, for each model.
    template_max_waiting: int = 64
    # Seconds of processor time for one rendering.
    template_cpu_s: float = 1.0
    # Seconds on the clock for one rendering; its child is killed then. template_cpu_s ends first,
    # but for a starved machine.
    template_deadline_s: float = 5.0
    # Memory of one such child.
    template_memory_bytes: int = 512 * 1024 * 1024
    # Bytes of one rendered conversation.
    template_max_output_bytes: int = 4 * 1024 * 1024
    # Seconds for which calls may go on after the signal to stop.
    drain_s: float = 5.0

    def __post_init__(self) -> None:
        if not (self.router or self.models):
            raise ValueError("router must name the fleet's routers, or models a folder")
        _check_syntaxes("tool_syntaxes", self.tool_syntaxes, TOOL_SYNTAXES)
        _check_syntaxes("reasoning_syntaxes", self.reasoning_syntaxes, REASONING_SYNTAXES)
        for name, value in vars(self).items():
            if isinstance(value, int | float) and value <= 0:
                raise ValueError(f"{name} must be above 0")

    def syntaxes_of(self, name: str) -> Syntaxes:
        """The syntaxes that are set for a model."""
        return Syntaxes(
            _by_name(self.tool_syntaxes).get(name), _by_name(self.reasoning_syntaxes).get(name)
        )

    def model_folders(self) -> list[tuple[str, Path]]:
        """(name, folder) of each model."""
        pairs = [entry.rpartition("=") for entry in self.models]
        return [(name or Path(folder).name, Path(folder)) for name, _, folder in pairs]


def _by_name(entries: tuple[str, ...]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in entries)


def _check_syntaxes(field: str, entries: tuple[str, ...], known: tuple[str, ...]) -> None:
    for entry in entries:
        if entry.partition("=")[2] not in known:
            names = ", ".join(known)
            raise ValueError(f"{field}: got {entry}; expected name= and one of {names}")
