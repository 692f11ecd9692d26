"""Typical mistakes at the command line, in the API and with model folders, and their answers.

`docs/mistakes.md` is made of them: `python -m tests.kit.mistakes`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Mistake(NamedTuple):
    """What somebody does, what Baton said in the first walk-through, and what it must say."""

    typed: str
    before: str
    now: str


USAGE = "usage, and argparse's line without a hint"
COMMANDS = (
    Mistake(
        "baton stauts", USAGE, "baton: there is no command 'stauts'; did you mean: baton status"
    ),
    Mistake("baton log", USAGE, "baton: there is no command 'log'; did you mean: baton logs"),
    Mistake(
        "baton frobnicate", USAGE, "baton: there is no command 'frobnicate'; see: baton --help"
    ),
    Mistake(
        "baton up --modle x",
        "the top-level usage, and `unrecognized arguments`",
        "baton up: there is no option --modle; did you mean --model?; see: baton up --help",
    ),
    Mistake(
        "baton up --decode two",
        USAGE,
        "baton up: --decode 'two': must be a whole number; see: baton up --help",
    ),
    Mistake(
        "baton up --dtype fp16",
        USAGE,
        "baton up: --dtype 'fp16': say one of auto, float32, bfloat16",
    ),
    Mistake(
        "baton up --engine vlm",
        USAGE,
        "baton up: --engine 'vlm': did you mean vllm?",
    ),
    Mistake("baton up --port", USAGE, "baton up: --port needs a value; see: baton up --help"),
    Mistake(
        "baton up --port 99999",
        "one line",
        "baton: port '99999': must be a number from 0 to 65535; 0 = a free one",
    ),
    Mistake(
        "baton up --model no-such-folder",
        "one line",
        "baton: model 'no-such-folder': not a folder, and not a Hugging Face id (owner/name)",
    ),
    Mistake(
        "baton up --gpus 0,1",
        "one line",
        "baton: --gpus 0,1: 3 workers need 3 GPUs; name as many, or take fewer workers "
        "(--prefill 1 --decode 1)",
    ),
    Mistake(
        "baton up --kv-memory much",
        "one line",
        "baton: --kv-memory 'much' is not an amount of memory such as 512MiB or 2GiB",
    ),
    Mistake(
        "baton up --max-model-len 999999",
        "the limit, after 12 s",
        "baton: model baton-demo: --max-model-len 999999 exceeds the model's 2048; "
        "say 2048 or less",
    ),
    Mistake(
        "baton up --alias gpt=nosuch",
        "one line",
        "baton: --alias 'gpt=nosuch': this stack serves baton-demo, not 'nosuch'",
    ),
    Mistake(
        "baton status now",
        "the top-level usage",
        "baton status: 'now' is one word too many; see: baton status --help",
    ),
    Mistake(
        "baton status",
        "one line",
        "baton: no stack runs in HOME; start one with: baton up (or make up)",
    ),
    Mistake(
        "baton chat hello",
        "there was no such command",
        "baton: no stack runs in HOME; start one with: baton up (or make up)",
    ),
    Mistake(
        "baton top --interval -5",
        "taken",
        "baton: --interval -5: must be 0.2 or more",
    ),
    Mistake(
        "baton logs",
        "there was no such command",
        "baton: no logs in HOME/logs: no stack has run there",
    ),
    Mistake(
        "baton keys",
        USAGE,
        "baton keys: create, limit, list or revoke is needed; see: baton keys --help",
    ),
    Mistake(
        "baton keys crate",
        USAGE,
        "baton keys: there is no 'crate'; did you mean create?",
    ),
    Mistake(
        "baton keys create",
        USAGE,
        "baton keys create: --tenant is needed; see: baton keys create --help",
    ),
    Mistake(
        "baton keys create --tenant ../x",
        "Expected `str` matching regex '^[A-Za-z0-9]...' - at `$.tenant`",
        "baton: tenant: must be NAME or ORGANISATION/NAME; each 1 to 64 letters, digits, '_', '.' "
        "or '-', the first a letter or digit",
    ),
    Mistake(
        "baton keys create --tenant a --rpm -1",
        "one line",
        "baton: --rpm -1: must be 0 or more; 0 = unlimited",
    ),
    Mistake(
        "baton keys create --tenant a --budget 100/week",
        "one line",
        "baton: --budget '100/week': say N/day or N/month, N tokens",
    ),
    Mistake(
        "baton keys create --tenant a --identity ldap:x",
        "one line",
        "baton: identity 'ldap:x': say jwt: or cert: and a name",
    ),
    Mistake(
        "baton keys limit --tenant a --model 'x;y' --rpm 1",
        "Expected `str` matching regex '^[!-:<-~]{1,256}' - at `key` in `$.limits.by_model`",
        "baton: a key of limits.by_model: must be 1 to 256 visible ASCII characters without ';'",
    ),
    Mistake(
        "baton keys revoke key_1",
        "one line",
        "baton: key id 'key_1' is not in the registry; see: baton keys list",
    ),
    Mistake(
        "baton usage --since monday",
        USAGE,
        "baton usage: --since 'monday': say YYYY-MM-DD; see: baton usage --help",
    ),
)

# A folder of a model, by what is wrong with it.
FOLDERS = (
    Mistake(
        "mamba",
        "the reason, after 12 to 14 s",
        "mamba keeps a recurrent state, which is not served; docs/models.md lists what is",
    ),
    Mistake(
        "bert",
        "`BertSelfAttention 0 needs a mask that is neither causal ...`, after 12 to 14 s",
        "bert is an encoder and writes no text, which is not served; docs/models.md lists what is",
    ),
    Mistake(
        "t5",
        "the reason, after 12 to 14 s",
        "t5 is an encoder-decoder, which is not served; docs/models.md lists what is",
    ),
    Mistake(
        "gptq",
        "the reason, after 12 to 14 s",
        "quantised weights of 'gptq' are not served; take the model in bfloat16 or fp8",
    ),
    Mistake(
        "a type that transformers does not know",
        "the reason, after 12 to 14 s",
        "type 'llama7' is unknown to transformers as installed; a newer one may know it",
    ),
    Mistake(
        "no model_type",
        "`type None is unknown to transformers`, after 12 to 14 s",
        "config.json has no model_type, so it is no model of transformers",
    ),
    Mistake(
        "no tokenizer",
        "transformers' 40 words, after 23 s",
        "FOLDER has no tokenizer (tokenizer.json); download the whole repository",
    ),
    Mistake(
        "half a safetensors file",
        "`Error while deserializing header: incomplete metadata`, without a file name",
        "model.safetensors is cut off: 1 MiB of 2 MiB; download it again",
    ),
    Mistake(
        "a missing shard",
        "transformers' message, after 12 s",
        "model-00002-of-00002.safetensors is not in FOLDER; download the whole repository",
    ),
    Mistake(
        "config.json that is no JSON",
        "after 12 s",
        "config.json cannot be read: Expecting value: line 1 column 1 (char 0)",
    ),
)

# The body of a request for a chat, beside a model and a message.
FIELDS = (
    Mistake(
        '"temprature": 1',
        "no such parameter",
        "temprature: no such parameter; did you mean temperature?",
    ),
    Mistake('"temperature": 5', "expected float <= 2.0", "temperature: got 5; must be at most 2.0"),
    Mistake(
        '"temperature": "hot"',
        "expected float | null, got str",
        'temperature: got "hot"; must be a number or null, not a string',
    ),
    Mistake('"max_tokens": 0', "expected int >= 1", "max_tokens: got 0; must be at least 1"),
    Mistake(
        '"stop": 5',
        "expected str | array | null, got int",
        "stop: got 5; must be a string or a list or null, not a whole number",
    ),
    Mistake(
        '"response_format": "json"',
        "expected object | null, got str",
        'response_format: got "json"; must be an object or null, not a string',
    ),
)

# The header Authorization.
HEADERS = (
    Mistake(
        "Authorization: bt-abc",
        "the API key is not valid",
        "the header Authorization must be 'Bearer <key>', and does not begin with 'Bearer '",
    ),
    Mistake(
        "no Authorization",
        "one line",
        "no API key given; send it as 'Authorization: Bearer <key>'",
    ),
)

# The path of a request.
PATHS = (
    Mistake(
        "/chat/completions", "no such path", "no such path; did you mean /v1/chat/completions?"
    ),
    Mistake("/v1/v1/models", "no such path", "no such path; did you mean /v1/models?"),
    Mistake(
        "/v1/chat/completion", "no such path", "no such path; did you mean /v1/chat/completions?"
    ),
    Mistake("/v1/generate", "no such path", "no such path; the API is under /v1, GET / lists it"),
    Mistake("/api/chat", "no such path", "no such path; the API is under /v1, GET / lists it"),
)

SECTIONS = {
    "Commands": COMMANDS,
    "Model folders (`baton up --model FOLDER`)": FOLDERS,
    "Fields of a request": FIELDS,
    "Headers of a request": HEADERS,
    "Paths": PATHS,
}

PAGE = Path(__file__).parents[2] / "docs" / "mistakes.md"
_INTRODUCTION = """\
# Typical mistakes and their answers

Each answer is one line that says what to do. `HOME` is the stack's folder, `FOLDER` the model's.
"Before" is what the first walk-through of a stranger met; "one line" means that the answer was as
good then. The rows are in `tests/kit/mistakes.py`, and `tests/unit/cli/test_mistakes.py` makes each
of these mistakes.
"""


def page() -> Iterator[str]:
    """The lines of docs/mistakes.md."""
    yield _INTRODUCTION.rstrip()
    for title, rows in SECTIONS.items():
        yield f"\n## {title}\n"
        yield "| Mistake | Before | Now |"
        yield "|---|---|---|"
        for row in rows:
            cells = (f"`{row.typed}`", row.before, f"`{row.now}`")
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text("\n".join(page()) + "\n")
