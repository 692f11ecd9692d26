"""The price list: what a million tokens of each model cost, in one file that is read again when it
changes.

    {"version": "2026-11", "currency": "USD",
     "models": {"large": {"prompt": "2.50", "cached": "1.25", "output": "10"}}}

Amounts are texts of at most six decimals, and never floats. The scripts compute
costs, in billionths of the currency, at the price that a request was reserved at. A new price list
needs a new version, which every usage record carries.
"""

import asyncio
import json
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from baton.runtime import logs
from baton.runtime.environment import SettingsError
from baton.wire.key_limits import ModelName
from baton.wire.v1 import quota_pb2

# A millionth of the currency for a million tokens is a thousandth of a billionth for one.
_DECIMALS = 6
_MAX_NAMED = 1000
_FREE = "0 0 0 "

Amount = Annotated[str, msgspec.Meta(pattern=rf"^[0-9]{{1,3}}(\.[0-9]{{1,{_DECIMALS}}})?\Z")]
Version = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,64}\Z")]
_log = logs.get("quota.prices")


class PriceError(SettingsError):
    """The price list is unusable; the message names the file."""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The price of a million tokens of a model. Cached prompt tokens cost as much as others unless
    they have a price of their own."""

    prompt: Amount
    output: Amount
    cached: Amount | None = None

    def __post_init__(self) -> None:
        if units(self.cached or "0") > units(self.prompt):
            raise ValueError("cached tokens must not cost more than others of a prompt")


class PriceList(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prices of all models, under one version."""

    version: Version
    currency: Annotated[str, msgspec.Meta(pattern=r"^[A-Z]{3}\Z")]
    models: dict[ModelName, Price]

    def text_of(self, model: str) -> str:
        """The price of a model as scripts read it: a prompt token, a cached one, an output token,
        and the version. Empty = it has none."""
        price = self.models.get(model)
        if price is None:
            return ""
        cached = price.prompt if price.cached is None else price.cached
        return f"{units(price.prompt)} {units(cached)} {units(price.output)} {self.version}"


def units(amount: str) -> int:
    """ "2.5" for a million tokens -> 2500000 thousandths of a billionth for one."""
    whole, _, fraction = amount.partition(".")
    return int(whole + fraction.ljust(_DECIMALS, "0"))


def parse_prices(text: str | bytes, origin: str) -> PriceList:
    """Read a price list; `origin` names it in errors. Raises PriceError."""
    try:
        return msgspec.convert(json.loads(text, object_pairs_hook=_once_each), PriceList)
    except (ValueError, RecursionError) as error:
        raise PriceError(f"{origin}: {error}") from error


class Prices:
    """The current prices; without a file everything is free."""

    def __init__(self, file: Path | None = None) -> None:
        """Raises PriceError."""
        self._file = file
        self._text = b""
        self._list: PriceList | None = None
        self._without_price: set[str] = set()
        # The price of a model, as scripts read it and as gateways do, until the list changes.
        self.text_of = lru_cache(_MAX_NAMED)(self._text_of)
        self.token_price = lru_cache(_MAX_NAMED)(self._token_price)
        if file is not None:
            self._take(_read(file))

    def _text_of(self, model: str) -> str:
        """One without a price is free; the log says so once."""
        if self._list is None:
            return _FREE
        text = self._list.text_of(model)
        if not text and model not in self._without_price and len(self._without_price) < _MAX_NAMED:
            self._without_price.add(model)
            _log.warning("model_without_price", model=model, version=self._list.version)
        return text or f"{_FREE}{self._list.version}"

    def _token_price(self, model: str) -> quota_pb2.TokenPrice:
        """The price of a model as gateways estimate with it."""
        prompt, _, output, *_ = self.text_of(model).split(" ")
        return quota_pb2.TokenPrice(prompt=int(prompt), output=int(output))

    async def refresh(self) -> None:
        """Read the file again; one that is unusable is logged, and the earlier prices stay."""
        if self._file is None:
            return
        try:
            text = await asyncio.to_thread(_read, self._file)
            if text != self._text:
                self._take(text)
        except PriceError as error:
            _log.error("prices_unusable", error=str(error))

    def _take(self, text: bytes) -> None:
        # Also one that is unusable: it is named once.
        self._text = text
        prices = parse_prices(text, str(self._file))
        if self._list and prices != self._list and prices.version == self._list.version:
            raise PriceError(f"{self._file}: changed without a new version")
        self._list = prices
        self._without_price.clear()
        self.text_of.cache_clear()
        self.token_price.cache_clear()
        _log.info("prices_loaded", version=prices.version, num_models=len(prices.models))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise PriceError(f"{file}: {error.strerror}") from error


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name!r} is there twice")
    return dict(pairs)
