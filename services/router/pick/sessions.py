"""The workers that served each session last, which its next request should meet again.

A client names a session by its prompt_cache_key: requests that share much of their prompts. Where
they share it by blocks, the prefix index knows better. This helps where it cannot: requests that
come together, blocks that are not reported yet, a shared part that is shorter than a block. So a
session's worker counts as if it had SESSION_TOKENS of the prompt besides: the bonus decides between
workers that are otherwise alike, and no more.
"""

from collections import OrderedDict
from collections.abc import Iterable

SESSION_TOKENS = 256
SESSION_BYTES = 16
MAX_SESSIONS = 65_536
_NOBODY: frozenset[str] = frozenset()


class Sessions:
    """The ids of the workers by model and session; the sessions of longest ago are forgotten."""

    def __init__(self) -> None:
        self._workers: OrderedDict[tuple[str, bytes], frozenset[str]] = OrderedDict()

    def workers(self, model_fp: str, session: bytes) -> frozenset[str]:
        """The workers that served the session's last request."""
        return self._workers.get((model_fp, session), _NOBODY)

    def note(self, model_fp: str, session: bytes, worker_ids: Iterable[str]) -> None:
        """Note that these workers serve a request of the session, at this router or a peer."""
        key = model_fp, session[:SESSION_BYTES]
        self._workers[key] = frozenset(worker_ids)
        self._workers.move_to_end(key)
        if len(self._workers) > MAX_SESSIONS:
            self._workers.popitem(last=False)
