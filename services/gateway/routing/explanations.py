"""The explanations of this gateway's latest requests: what each pick was predicted to cost, what
other choices would have cost, and what was measured. Numbers and names only, no text of a request.
"""

import json
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Any

from baton.wire.pick_reasons import (
    FIRST_TOKEN_PARTS,
    LATER_PARTS,
    cost_s,
    first_token_s,
    later_s,
    overflow_of,
    parts_s,
)
from baton.wire.v1 import router_pb2
from services.gateway import instruments

# Requests, oldest first out: 2 KB each.
MAX_KEPT = 1000
# Of them, the first prompts of one list.
MAX_KEPT_OF_LIST = 32
# Of one request: its latest ones.
MAX_PICKS = 4
# Added to both sides of a ratio, so that parts of microseconds do not look wrong.
_NOISE_S = 0.001
# The worker's stages that a part of the prediction is about. The rest of the time until the first
# token is compared with the predicted steps.
_STAGES = {"wait": "prefill.queue", "prefill": "prefill.compute", "handoff": "handoff"}


class ExplainedPick:
    """One pick of a request, and what was measured when its attempt brought the first token."""

    def __init__(self, pick: router_pb2.PickResponse, queue_s: float, picked_s: float) -> None:
        self._pick = pick
        self._queue_s = queue_s
        self._picked_s = picked_s
        self._measured_s: dict[str, float] = {}

    @property
    def chosen(self) -> router_pb2.PickChoice | None:
        """The prediction; None when no router picked, or from guessed rates."""
        choices = self._pick.reasons.choices
        return choices[0] if choices and choices[0].is_measured else None

    def measure(self, now_s: float, stages: Mapping[str, float]) -> None:
        """Note that the first token came now; `stages` are the worker's own until then."""
        measured_s = {part: stages.get(stage, 0.0) for part, stage in _STAGES.items()}
        first_s = now_s - self._picked_s
        measured_s["steps"] = max(first_s - sum(measured_s.values()), 0.0)
        self._measured_s = {**measured_s, "first_token": first_s}

    @property
    def regret_s(self) -> float | None:
        """The seconds by which the choice cost more than the best other one was predicted to cost;
        None while nothing was measured, or without another choice.

        The first token's time is the measured one, later costs are those that were predicted.
        """
        chosen, others = self.chosen, self._pick.reasons.choices[1:]
        if chosen is None or not others or not self._measured_s:
            return None
        own_s = self._measured_s["first_token"] + later_s(chosen)
        return max(own_s - min(cost_s(other) for other in others), 0.0)

    def errors(self) -> Mapping[str, float]:
        """Measured over predicted time, by part; none where the prediction was a guess."""
        chosen = self.chosen
        if chosen is None or not self._measured_s:
            return {}
        parts = {part: getattr(chosen, f"{part}_s") for part in FIRST_TOKEN_PARTS}
        if not chosen.prefill_worker_id:
            del parts["handoff"]
        parts["first_token"] = first_token_s(chosen)
        return {part: _ratio(self._measured_s[part], own_s) for part, own_s in parts.items()}

    def row(self) -> dict[str, Any]:
        """The pick as a page shows it."""
        reasons = self._pick.reasons
        choices = [_choice_row(choice) for choice in reasons.choices]
        regret_s = self.regret_s
        return {
            "decode": self._pick.decode.worker_id,
            "prefill": self._pick.prefill.worker_id,
            "queue_s": _rounded(self._queue_s),
            "num_prompt_tokens": reasons.num_prompt_tokens,
            "chosen": choices[0] if choices else None,
            "others": choices[1:],
            "left_out": {each.worker_id: each.reason for each in reasons.left_out},
            "num_omitted": reasons.num_omitted,
            "remark": reasons.remark or overflow_of(reasons),
            "measured_s": {part: _rounded(own_s) for part, own_s in self._measured_s.items()},
            "regret_s": None if regret_s is None else _rounded(regret_s),
        }


class Explanation:
    """The explanation of one request, from its first pick on.

    `is_counted`: the metrics take it in. That needs a first token that comes when the prompt is
    computed.
    """

    def __init__(
        self,
        request_id: str,
        tenant: str,
        model_name: str,
        *,
        is_counted: bool,
        client_request_id: str = "",
    ) -> None:
        self.request_id = request_id
        self.client_request_id = client_request_id
        self._is_counted = is_counted
        self._tenant = tenant
        self._model_name = model_name
        self._label = instruments.METERING.label(model_name)
        self._picks: deque[ExplainedPick] = deque(maxlen=MAX_PICKS)
        self._num_cached_tokens: int | None = None
        # Between two tokens, in the mean.
        self._token_gap_s: float | None = None

    def picked(self, pick: router_pb2.PickResponse, queue_s: float, now_s: float) -> None:
        """Add a pick, made now. There is one before the other methods are called."""
        self._picks.append(ExplainedPick(pick, queue_s, now_s))

    def began(self, now_s: float, stages: Mapping[str, float]) -> None:
        """Note the first token, which comes now; `stages` are the worker's own until then."""
        pick = self._picks[-1]
        pick.measure(now_s, stages)
        if not self._is_counted:
            return
        for part, ratio in pick.errors().items():
            instruments.GATEWAY_PICK_ERROR.labels(self._label, part).observe(ratio)
        regret_s = pick.regret_s
        if regret_s is not None:
            instruments.GATEWAY_PICK_REGRET.labels(self._label).observe(regret_s)

    def ended(self, num_cached_tokens: int, token_gap_s: float | None) -> None:
        """Note the counts of the whole request; `token_gap_s` is None where one attempt alone did
        not make all of one choice."""
        self._num_cached_tokens = num_cached_tokens
        self._token_gap_s = token_gap_s
        chosen = self._picks[-1].chosen
        if self._is_counted and chosen is not None and token_gap_s is not None:
            ratio = _ratio(token_gap_s, chosen.step_s)
            instruments.GATEWAY_PICK_ERROR.labels(self._label, "token_gap").observe(ratio)

    def to_json(self) -> bytes:
        """The explanation as ASCII, fit for a header."""
        row = {
            "request_id": self.request_id,
            "tenant": self._tenant,
            "model": self._model_name,
            "picks": [pick.row() for pick in self._picks],
            "num_cached_tokens": self._num_cached_tokens,
            "token_gap_s": None if self._token_gap_s is None else _rounded(self._token_gap_s),
        }
        return json.dumps(row, separators=(",", ":")).encode()


class Explanations:
    """The explanations of the latest requests of one gateway, by request id."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Explanation] = OrderedDict()

    def keep(self, explanation: Explanation) -> None:
        """Keep one more; the oldest goes. A list of thousands of prompts drives no others out."""
        number = explanation.request_id.partition(".")[2]
        if number and int(number) >= MAX_KEPT_OF_LIST:
            return
        self._kept[explanation.request_id] = explanation
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def page(self, given_id: str) -> bytes | None:
        """The explanation of a request as JSON, or of the latest one that its client calls so; None
        when there is none."""
        explanation = self._kept.get(given_id)
        if explanation is None:
            latest_first = reversed(self._kept.values())
            named = (each for each in latest_first if given_id == each.client_request_id != "")
            explanation = next(named, None)
        return None if explanation is None else explanation.to_json()


def _choice_row(choice: router_pb2.PickChoice) -> dict[str, Any]:
    parts = parts_s(choice)
    return {
        "decode": choice.decode_worker_id,
        "prefill": choice.prefill_worker_id,
        "num_cached_tokens": choice.num_cached_tokens,
        "is_measured": choice.is_measured,
        "decode_zone": choice.decode_zone,
        "prefill_zone": choice.prefill_zone,
        "cost_s": _rounded(cost_s(choice)),
        "first_token_s": _rounded(first_token_s(choice)),
        "parts_s": {part: _rounded(parts[part]) for part in (*FIRST_TOKEN_PARTS, *LATER_PARTS)},
        "token_gap_s": _rounded(choice.step_s),
    }


def _ratio(measured_s: float, predicted_s: float) -> float:
    return (measured_s + _NOISE_S) / (predicted_s + _NOISE_S)


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
