"""`baton explain REQUEST_ID`: why a request got its workers, and how good the prediction was."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from baton.cli.stack import running_state
from baton.localstack.home import Home
from baton.page.scraper import Scraper

# The parts of a prediction, as the gateway names them, and the same for people.
_PARTS = {
    "wait": "wait for prefill",
    "prefill": "prefill",
    "handoff": "handoff",
    "steps": "decode wait and the way",
}
_COSTS = {"itl": "slower output", "streams": "delay of others", "zone": "leaving the zone"}
_LABEL_CHARS = 24
# Less is shown as nothing.
_SHOWN_S = 0.00005


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser("explain", help="why a request got its workers")
    parser.add_argument("request_id", help="x-request-id, or the client's own")
    parser.set_defaults(run=_explain)


def _explain(arguments: argparse.Namespace) -> int:
    state = running_state(Home.of_environment())
    scraper = Scraper()
    try:
        explanation = scraper.explanation(state.fleet().services, arguments.request_id)
    finally:
        scraper.close()
    if explanation is None:
        print(f"no gateway has picked workers for {arguments.request_id} lately")
        return 1
    print("\n".join(render(explanation)))
    return 0


def render(explanation: Mapping[str, Any]) -> Iterator[str]:
    """The lines of one explanation."""
    head = (explanation["request_id"], explanation["model"], explanation["tenant"])
    yield "request {}  model {}  tenant {}".format(*head)
    picks: Sequence[Mapping[str, Any]] = explanation["picks"]
    for number, pick in enumerate(picks):
        is_last = number == len(picks) - 1
        yield ""
        yield from _pick(pick, explanation if is_last else {})


def _pick(pick: Mapping[str, Any], ended: Mapping[str, Any]) -> Iterator[str]:
    """The lines of one pick; `ended` has the counts of the whole request if it was the last one."""
    yield f"{_name(pick)}  after {_ms(pick['queue_s'])} in the router's queue"
    if pick["remark"]:
        yield pick["remark"]
    chosen = pick["chosen"]
    if chosen:
        num_cached = ended.get("num_cached_tokens")
        found = "" if num_cached is None else f", {num_cached} were found"
        yield (
            f"prompt of {pick['num_prompt_tokens']} tokens, {chosen['num_cached_tokens']} of them "
            f"expected in the cache{found}"
        )
        if not chosen["is_measured"]:
            yield "the rates were not measured yet: the prediction is a guess"
        yield from _comparison(chosen, pick["measured_s"], ended.get("token_gap_s"))
        yield from _others(chosen, pick["others"])
    left_out = [f"{worker} {reason}" for worker, reason in pick["left_out"].items()]
    if pick["num_omitted"]:
        left_out.append(f"{pick['num_omitted']} more")
    if left_out:
        yield f"left out  {', '.join(left_out)}"
    if pick["regret_s"] is not None:
        yield f"regret  {_ms(pick['regret_s'])} beside the best other prediction"


def _comparison(
    chosen: Mapping[str, Any], measured_s: Mapping[str, float], token_gap_s: float | None
) -> Iterator[str]:
    yield f"{'':<{_LABEL_CHARS}}{'predicted':>12}{'measured':>12}"
    parts = chosen["parts_s"]
    for part, label in _PARTS.items():
        yield _row(label, parts[part], measured_s.get(part))
    yield _row("first token", chosen["first_token_s"], measured_s.get("first_token"))
    yield _row("between two tokens", chosen["token_gap_s"], token_gap_s)
    for part, label in _COSTS.items():
        yield _row(f"cost: {label}", parts[part], None)


def _row(label: str, predicted_s: float, measured_s: float | None) -> str:
    measured = "" if measured_s is None else _ms(measured_s)
    return f"{label:<{_LABEL_CHARS}}{_ms(predicted_s):>12}{measured:>12}".rstrip()


def _others(chosen: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for other in others:
        behind = {
            part: other["parts_s"][part] - chosen["parts_s"][part] for part in other["parts_s"]
        }
        worst = max(behind, key=lambda part: behind[part])
        more_s = other["cost_s"] - chosen["cost_s"]
        cost = "as cheap: chance decided"
        if more_s >= _SHOWN_S:
            cost = f"cost {_ms(more_s)} more: {(_PARTS | _COSTS)[worst]}"
        yield f"not {_name(other)}  first token in {_ms(other['first_token_s'])}, {cost}"


def _name(pair: Mapping[str, Any]) -> str:
    return f"{pair['decode']}+{pair['prefill']}" if pair["prefill"] else str(pair["decode"])


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"
