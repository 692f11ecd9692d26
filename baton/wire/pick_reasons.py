"""The parts of a pick's predicted costs, and its reasons as one line of text for people."""

from collections.abc import Mapping

from baton.wire.v1 import router_pb2

# The parts that add up to the predicted time from the pick to the first token.
FIRST_TOKEN_PARTS = ("wait", "prefill", "handoff", "steps")
# The weighed costs beyond it: slower output, the delay of streams that run there, and what it costs
# to leave a zone.
LATER_PARTS = ("itl", "streams", "zone")


def parts_s(choice: router_pb2.PickChoice) -> Mapping[str, float]:
    """The predicted seconds of a choice, by part."""
    return {part: getattr(choice, f"{part}_s") for part in (*FIRST_TOKEN_PARTS, *LATER_PARTS)}


def cost_s(choice: router_pb2.PickChoice) -> float:
    """The seconds by which choices are compared: all parts together."""
    return sum(parts_s(choice).values())


def first_token_s(choice: router_pb2.PickChoice) -> float:
    """The predicted seconds from the pick to the first token."""
    return choice.wait_s + choice.prefill_s + choice.handoff_s + choice.steps_s


def later_s(choice: router_pb2.PickChoice) -> float:
    """The predicted costs beyond the first token."""
    return cost_s(choice) - first_token_s(choice)


def name_of(choice: router_pb2.PickChoice) -> str:
    """The names of the pair."""
    prefill = choice.prefill_worker_id
    return f"{choice.decode_worker_id}+{prefill}" if prefill else choice.decode_worker_id


def worst_part(choice: router_pb2.PickChoice, chosen: router_pb2.PickChoice) -> str:
    """The part in which a choice is furthest behind the chosen one."""
    parts, best = parts_s(choice), parts_s(chosen)
    return max(parts, key=lambda part: parts[part] - best[part])


def is_far(choice: router_pb2.PickChoice) -> bool:
    """Return whether the handoff leaves its zone."""
    zones = (choice.prefill_zone, choice.decode_zone)
    return all(zones) and zones[0] != zones[1]


def overflow_of(reasons: router_pb2.PickReasons) -> str:
    """The reason why the chosen pair is of two zones; empty when it is not."""
    chosen = reasons.choices[0] if reasons.choices else None
    if chosen is None or not is_far(chosen):
        return ""
    head = f"prefill in zone {chosen.prefill_zone}, decode in {chosen.decode_zone}: "
    near = next((other for other in reasons.choices if not is_far(other)), None)
    if near is None:
        return head + "no pair within a zone could be chosen"
    behind_s = cost_s(near) - cost_s(chosen)
    return f"{head}{name_of(near)} costs {behind_s:.4g}s more, {worst_part(near, chosen)}"


def text_of(reasons: router_pb2.PickReasons) -> str:
    """The winner with its costs, each other choice with the seconds and the part that it lost by,
    and the workers that were left out."""
    texts = [reasons.remark] if reasons.remark else []
    choices = list(reasons.choices)
    if choices:
        texts.append(_won(choices[0], reasons.num_prompt_tokens))
        texts += [_lost(other, choices[0]) for other in choices[1:]]
    if overflow := overflow_of(reasons):
        texts.append(overflow)
    texts += [f"{each.worker_id} {each.reason}" for each in reasons.left_out]
    if reasons.num_omitted:
        texts.append(f"and {reasons.num_omitted} more")
    return "; ".join(texts)


def _won(choice: router_pb2.PickChoice, num_prompt_tokens: int) -> str:
    costs = " ".join(
        f"{part} {seconds:.4g}" for part, seconds in parts_s(choice).items() if seconds
    )
    cached = f"cached {choice.num_cached_tokens}/{num_prompt_tokens}"
    return f"{name_of(choice)} {cost_s(choice):.4g}s ({costs}; {cached})"


def _lost(choice: router_pb2.PickChoice, chosen: router_pb2.PickChoice) -> str:
    behind_s = cost_s(choice) - cost_s(chosen)
    return f"{name_of(choice)} +{behind_s:.4g}s {worst_part(choice, chosen)}"
