"""One gateway's attempts by handle, and one Step frame for whatever they produced."""

from collections.abc import Callable, Iterator
from typing import Any

from baton.wire import failures
from baton.wire.v1 import worker_pb2
from baton.worker.deps import WorkerDeps
from baton.worker.prompt import PromptBuffer, check_cache_key
from baton.worker.sampling import to_params
from services.decode_worker.attempt import Attempt
from services.decode_worker.attempt_output import refuse
from services.decode_worker.attempt_request import AttemptRequest, check_room
from services.decode_worker.gateway_link import GatewayLink, LinkKey
from services.decode_worker.prefill_links import PrefillLinks

MAX_PARTIAL_PROMPTS = 64


class GatewaySession:
    """The attempts of one gateway, for as long as its link lasts.

    `check_admission` raises Unavailable while nothing new is taken. `on_change` is called when an
    attempt has ended, when the gateway is back, and once when all is over.
    """

    def __init__(
        self,
        deps: WorkerDeps,
        links: PrefillLinks,
        key: LinkKey,
        check_admission: Callable[[], None],
        on_change: Callable[["GatewaySession"], None],
    ) -> None:
        self.link = GatewayLink(key, self._on_frame, self._link_changed)
        self._deps = deps
        self._links = links
        self._check_admission = check_admission
        self._on_change = on_change
        self._attempts: dict[int, Attempt] = {}
        self._handles: dict[str, int] = {}  # of the newest attempt of a request
        # Submits whose prompt continues in further frames.
        self._partial: dict[int, tuple[worker_pb2.Submit, PromptBuffer]] = {}
        self._handlers: dict[str, Callable[[Any], None]] = {
            "submit": self._on_submit,
            "prompt_part": self._on_prompt_part,
            "credits": self._on_credits,
            "cancel": self._on_cancel,
            "cancel_choices": self._on_cancel_choices,
        }

    @property
    def num_attempts(self) -> int:
        return len(self._attempts)

    def open_request_ids(self) -> Iterator[str]:
        """The request ids of its attempts."""
        for attempt in self._attempts.values():
            yield attempt.request.submit.request_id

    @property
    def is_busy(self) -> bool:
        """Something runs, or waits for a gateway that may come back for it."""
        return bool(self._attempts) or self.link.is_disconnected

    def fail_all(self, error: failures.BatonError) -> None:
        """Every open attempt has failed."""
        for attempt in list(self._attempts.values()):
            attempt.failed(error)

    def end_of_step(self, step: int) -> None:
        """Write what all attempts got in this step."""
        self.link.merge.step = step
        if self.link.merge.has_tokens:
            self.link.wake()

    def _link_changed(self) -> None:
        if self.link.is_over:
            self._partial.clear()
            for attempt in list(self._attempts.values()):
                attempt.drop()
        self._on_change(self)

    def _on_frame(self, frame: worker_pb2.GatewayFrame) -> None:
        kind = frame.WhichOneof("frame") or ""
        if (handler := self._handlers.get(kind)) is not None:
            handler(getattr(frame, kind))

    def _on_submit(self, submit: worker_pb2.Submit) -> None:
        handle = submit.handle
        if handle in self._attempts or handle in self._partial:
            refuse(self.link, submit, failures.InvalidRequest(f"handle {handle} is in use"))
            return
        try:
            self._check(submit)
            buffer = PromptBuffer(
                submit.num_prompt_tokens, self._deps.dispatcher.info.max_model_len
            )
            buffer.add(submit.prompt_ids, submit.block_hashes)
        except failures.BatonError as error:
            self._refuse_new(submit, error)
            return
        self._partial[handle] = (submit, buffer)
        self._start_if_complete(handle)

    def _on_prompt_part(self, part: worker_pb2.PromptPart) -> None:
        if part.handle not in self._partial:
            return  # of a submit that was refused or cancelled
        submit, buffer = self._partial[part.handle]
        try:
            buffer.add(part.prompt_ids, part.block_hashes)
            submit.emitted.extend(part.emitted)
            check_room(submit, self._deps.dispatcher.info.max_model_len)
        except failures.BatonError as error:
            del self._partial[part.handle]
            self._refuse_new(submit, error)
            return
        self._start_if_complete(part.handle)

    def _check(self, submit: worker_pb2.Submit) -> None:
        self._check_admission()
        model_fp = self._deps.dispatcher.info.model_fp
        if submit.model_fp != model_fp:
            raise failures.Incompatible(f"model_fp {submit.model_fp} != {model_fp} here")
        check_cache_key(submit.cache_key)
        if submit.pools and self._deps.dispatcher.info.pooling is None:
            message = "the engine of this worker gives no vectors"
            raise failures.InvalidRequest(message, reason="not_an_embedding_model")
        if len(self._partial) >= MAX_PARTIAL_PROMPTS:
            raise failures.Overloaded(f"{MAX_PARTIAL_PROMPTS} prompts are unfinished already")
        older = self._attempts.get(self._handles.get(submit.request_id, -1))
        if older is not None:
            if older.request.submit.epoch >= submit.epoch:
                raise failures.InvalidRequest(f"epoch {submit.epoch} has passed already")
            older.cancel()

    def _start_if_complete(self, handle: int) -> None:
        submit, buffer = self._partial[handle]
        if not buffer.is_complete:
            return
        del self._partial[handle]
        deadline_s = None
        if submit.deadline_ms:
            deadline_s = self._deps.clock.now() + submit.deadline_ms / 1000
        try:
            sampling = to_params(submit.sampling)
            request = AttemptRequest(
                submit, buffer.token_ids, buffer.block_hashes, sampling, deadline_s
            )
            request.check_earlier(self._deps.dispatcher.info.max_model_len)
        except failures.BatonError as error:
            self._refuse_new(submit, error)
            return
        attempt = Attempt(request, self.link, self._deps, self._links, self._ended)
        self._attempts[handle] = attempt
        self._handles[submit.request_id] = handle
        attempt.start()

    def _ended(self, attempt: Attempt) -> None:
        submit = attempt.request.submit
        del self._attempts[submit.handle]
        if self._handles.get(submit.request_id) == submit.handle:
            del self._handles[submit.request_id]
        self._on_change(self)

    def _refuse_new(self, submit: worker_pb2.Submit, error: failures.BatonError) -> None:
        self._deps.reports.accepted(submit.request_id)
        refuse(self.link, submit, error)

    def _on_credits(self, credits: worker_pb2.Credits) -> None:
        columns = zip(credits.handles, credits.choices, credits.up_to_index, strict=False)
        for handle, choice, up_to_index in columns:
            if (attempt := self._attempts.get(handle)) is not None:
                attempt.credit(choice, up_to_index)

    def _on_cancel(self, cancel: worker_pb2.Cancel) -> None:
        for handle, (submit, _) in list(self._partial.items()):
            if (submit.request_id, submit.epoch) == (cancel.request_id, cancel.epoch):
                del self._partial[handle]
        attempt = self._attempts.get(self._handles.get(cancel.request_id, -1))
        if attempt is not None and attempt.request.submit.epoch == cancel.epoch:
            attempt.cancel()

    def _on_cancel_choices(self, cancel: worker_pb2.CancelChoices) -> None:
        if (attempt := self._attempts.get(cancel.handle)) is not None:
            attempt.cancel_choices(cancel.choices)
