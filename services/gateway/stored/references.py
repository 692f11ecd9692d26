"""Items of an input that only name a stored item, which takes their place.

An item's name holds that of its request, and so of its response: no index of items is kept. An
item that its client named itself cannot be found.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from baton.wire.failures import InvalidRequest, quoted
from baton.wire.plain_errors import plain
from services.gateway.openai import limits
from services.gateway.openai.generation import Thread
from services.gateway.openai.responses import is_reference
from services.gateway.stored.items import output_items
from services.gateway.stored.store import Store, too_large

_NAME = re.compile(r"[a-z]+_(req_[0-9a-z]+)(?:_[0-9]+)?")

# As JSON, by their names.
Items = dict[str, msgspec.Raw]


class _Reference(msgspec.Struct, forbid_unknown_fields=True):
    id: limits.UserId
    type: str


async def with_items(store: Store, thread: Thread) -> Thread:
    """The thread with stored items in the place of references. Raises InvalidRequest when one is
    not stored, Unavailable."""
    given: list[Any] = msgspec.json.decode(thread.input_json)
    names = {
        index: _name_of(item, f"input[{index}]")
        for index, item in enumerate(given)
        if is_reference(item)
    }
    found = await _found(store, thread.tenant, set(names.values()))
    _check_size(store, [found[name] for name in names.values() if name in found])
    for index, name in names.items():
        if name not in found:
            param = f"input[{index}].id"
            message = f"{param}: no item {quoted(name)} is stored here"
            raise InvalidRequest(message, reason="previous_response_not_found", param=param)
        given[index] = found[name]
    input_json = msgspec.json.encode(given)
    _check_size(store, [input_json])
    return msgspec.structs.replace(thread, input_json=input_json, has_references=False)


def _check_size(store: Store, parts: Iterable[msgspec.Raw | bytes]) -> None:
    """Refuse an input that its parts make too large, before they are joined: thousands of
    references may name one large item."""
    if sum(map(len, parts)) > store.max_object_bytes:
        raise too_large("input with the items that it names")


def _name_of(item: Any, place: str) -> str:
    try:
        return msgspec.convert(item, _Reference).id
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{place}: {plain(str(error))}", param=place) from None


async def _found(store: Store, tenant: str, names: set[str]) -> Items:
    """The stored items that have these names."""
    by_response = defaultdict(set)
    for name in names:
        parts = _NAME.fullmatch(name)
        if parts is not None:
            by_response[f"resp_{parts[1]}"].add(name)
    found: Items = {}
    for response_id, wanted in by_response.items():
        found |= await _items_of(store, tenant, response_id, wanted)
        _check_size(store, found.values())
    return found


async def _items_of(store: Store, tenant: str, response_id: str, wanted: set[str]) -> Items:
    """Items of a response, those of its output before those of its input."""
    (response,) = await store.read(tenant, response_id, "response")
    if response is None:
        return {}
    output = output_items(msgspec.json.decode(response))
    found = _named(output, wanted)
    if len(found) < len(wanted):
        (before,) = await store.read(tenant, response_id, "input")
        items = [] if before is None else msgspec.json.decode(before)
        found = _named(items, wanted) | found
    return found


def _named(items: list[dict[str, Any]], wanted: set[str]) -> Items:
    return {
        item["id"]: msgspec.Raw(msgspec.json.encode(item)) for item in items if item["id"] in wanted
    }
