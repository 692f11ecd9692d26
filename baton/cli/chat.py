"""`baton chat`: talk to a model of the running stack, or ask it once.

Ctrl-C ends an answer, not the program; what has come of it stays in the conversation.
"""

import argparse
import contextlib
import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from baton.cli.parser import nearest
from baton.cli.stack import running_state
from baton.localstack.home import Home, StackState
from baton.localstack.refusal import Refusal

_MARK = '"""'
_PROMPT, _MORE = "> ", ". "
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_TIMEOUT_S = 600
_MAX_ERROR_BYTES = 4096
_COMMANDS = {
    "/help": "these commands",
    "/model NAME": "ask another model; without a name: the models",
    "/system TEXT": "set the system prompt; without a text: none",
    "/clear": "begin a new conversation",
    "/bye": "end; so does Ctrl-D",
}
_HELP = "\n".join(
    [
        *(f"{name:<14}{what}" for name, what in _COMMANDS.items()),
        f"{_MARK:<14}begins and ends a message of several lines",
        f"{'Ctrl-C':<14}ends an answer",
    ]
)


class ChatFailed(Refusal):
    """The stack refused a request; the message is the API's."""


@dataclass(slots=True)
class Conversation:
    """What was said, and how the next answer is asked for."""

    model: str
    system: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)

    def body(self) -> bytes:
        first = [{"role": "system", "content": self.system}] if self.system else []
        asked = {"model": self.model, "messages": first + self.messages, "stream": True}
        return json.dumps(asked | self.options).encode()


@dataclass(slots=True)
class Answer:
    """An answer as it comes. `is_cut`: it was ended by Ctrl-C."""

    request_id: str = ""
    text: str = ""
    first_s: float | None = None
    total_s: float = 0.0
    num_pieces: int = 0
    is_cut: bool = False

    def told(self) -> str:
        """A line about it."""
        words = ["ended by Ctrl-C"] if self.is_cut else []
        if self.first_s is not None:
            words.append(f"first token {self.first_s * 1000:,.0f} ms")
            if self.total_s > self.first_s and self.num_pieces > 1:
                rate = (self.num_pieces - 1) / (self.total_s - self.first_s)
                words.append(f"{rate:,.0f} pieces/s")
        return ", ".join([*words, f"baton trace {self.request_id}"])


def add_parsers(commands: Any) -> None:
    help_text = 'talk to the model of the running stack; chat "question" asks once'
    parser = commands.add_parser("chat", help=help_text, description=help_text)
    help_text = "ask this and end; what is piped in is put behind it"
    parser.add_argument("question", nargs="?", help=help_text)
    parser.add_argument("--model", metavar="NAME", help="one that the stack serves (the first)")
    parser.add_argument("--system", default="", metavar="TEXT", help="system prompt")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of each answer")
    parser.add_argument("--temperature", type=float, metavar="X", help="0 = always the same")
    parser.set_defaults(run=_chat)


def _chat(arguments: argparse.Namespace) -> int:
    home = Home.of_environment()
    state = running_state(home)
    client = Client(state.base_url, home.read_dev_env().get("API_KEY", ""))
    given = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature}
    options = {name: value for name, value in given.items() if value is not None}
    model = chosen_model(state, arguments.model)
    conversation = Conversation(model, arguments.system, options)
    question = _question(arguments.question)
    if question is None:
        return _talk(client, conversation, state)
    conversation.messages.append({"role": "user", "content": question})
    answer = _show(client, conversation)
    return 130 if answer.is_cut else 0


def chosen_model(state: StackState, wanted: str | None) -> str:
    """The name to ask for. Raises Refusal for one that the stack does not serve."""
    names = state.models
    if not names:
        raise Refusal("this stack does not say what it serves: an older baton started it")
    if wanted is None:
        return names[0]
    if wanted not in names:
        near = nearest(wanted, names)
        hint = f"did you mean {near}?" if near else f"it serves {', '.join(names)}"
        raise Refusal(f"the stack does not serve {wanted!r}; {hint}")
    return wanted


def _question(given: str | None) -> str | None:
    """What to ask once; None = talk. Raises Refusal when nothing is piped in."""
    if sys.stdin.isatty():
        return given
    piped = sys.stdin.read().strip()
    if question := "\n\n".join(filter(None, (given, piped))):
        return question
    raise Refusal('nothing to ask: baton chat "question", or pipe a question in')


class Client:
    """Asks one gateway."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self._url = f"{base_url}/chat/completions"
        self._headers = {
            "Authorization": f"Bearer {api_key}",
            "Content-Type": "application/json",
        }

    @contextlib.contextmanager
    def ask(self, body: bytes) -> Iterator[http.client.HTTPResponse]:
        """An answer's stream; leaving closes it, which cancels the request. Raises ChatFailed."""
        request = urllib.request.Request(self._url, body, self._headers)
        try:
            response = urllib.request.urlopen(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            with error:
                raise ChatFailed(error_message(error.read(_MAX_ERROR_BYTES))) from None
        except OSError as error:
            raise ChatFailed(f"the stack does not answer: {error}; see: baton status") from None
        with response:
            yield response


def error_message(body: bytes) -> str:
    """The API's message in the body of a refusal."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return body.decode(errors="replace").strip() or "the gateway refused without a reason"


def pieces(lines: Iterator[bytes]) -> Iterator[str]:
    """The pieces of text of an event stream. Raises ChatFailed for an error event."""
    for line in lines:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise ChatFailed(str(event["error"].get("message", event["error"])))
        for choice in event.get("choices", ()):
            if text := choice["delta"].get("content"):
                yield text


def _show(client: Client, conversation: Conversation) -> Answer:
    """Print an answer as it comes, and keep it in the conversation. Raises ChatFailed."""
    answer = Answer()
    started = time.monotonic()
    try:
        with client.ask(conversation.body()) as response:
            answer.request_id = response.headers.get("x-request-id", "")
            for text in pieces(iter(response.readline, b"")):
                if answer.first_s is None:
                    answer.first_s = time.monotonic() - started
                answer.text += text
                answer.num_pieces += 1
                print(text, end="", flush=True)
    except KeyboardInterrupt:
        answer.is_cut = True
    answer.total_s = time.monotonic() - started
    print(flush=True)
    if answer.text:
        conversation.messages.append({"role": "assistant", "content": answer.text})
    if sys.stdout.isatty():
        print(f"{_DIM}{answer.told()}{_PLAIN}", file=sys.stderr)
    return answer


def _talk(client: Client, conversation: Conversation, state: StackState) -> int:
    """Read messages until the end of input."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # arrows and history in input()
    print(f"{conversation.model}; /help shows the commands, Ctrl-D ends")
    while True:
        try:
            message = _read_message()
        except KeyboardInterrupt:
            print("\nCtrl-D or /bye ends")
            continue
        except EOFError:
            print()
            return 0
        if message == "/bye":
            return 0
        if message.startswith("/"):
            _obey(message, conversation, state)
        elif message:
            _exchange(client, conversation, message)


def _exchange(client: Client, conversation: Conversation, message: str) -> None:
    conversation.messages.append({"role": "user", "content": message})
    try:
        _show(client, conversation)
    except ChatFailed as error:
        # As if it had not been said.
        del conversation.messages[-1]
        print(f"baton: {error}", file=sys.stderr)


def _read_message() -> str:
    """A line, or the lines between two marks."""
    text = input(_PROMPT).strip()
    if not text.startswith(_MARK):
        return text
    text = text.removeprefix(_MARK)
    while not text.rstrip().endswith(_MARK):
        text += "\n" + input(_MORE)
    return text.rstrip().removesuffix(_MARK).strip()


def _obey(message: str, conversation: Conversation, state: StackState) -> None:
    """Carry out a command; an unknown one is told, and nothing is sent."""
    name, _, rest = message.partition(" ")
    match name:
        case "/help":
            print(_HELP)
        case "/clear":
            conversation.messages.clear()
            print("a new conversation")
        case "/system":
            conversation.system = rest.strip()
            print("the system prompt is set" if conversation.system else "no system prompt")
        case "/model" if rest.strip():
            try:
                conversation.model = chosen_model(state, rest.strip())
                print(f"asking {conversation.model}")
            except Refusal as error:
                print(f"baton: {error}", file=sys.stderr)
        case "/model":
            print("\n".join(state.models))
        case _:
            known = [command.partition(" ")[0] for command in _COMMANDS]
            near = nearest(name, known)
            print(f"there is no {name}; {f'did you mean {near}?' if near else 'see /help'}")
