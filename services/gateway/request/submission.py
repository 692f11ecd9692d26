"""A valid request in the messages of quota, the tokenizer, the router and the decode workers."""

import random
from dataclasses import replace
from hashlib import blake2b

from baton.wire.failures import InvalidRequest, quoted
from baton.wire.v1 import quota_pb2, router_pb2, sampling_pb2, tokenizer_pb2, worker_pb2
from services.gateway.openai.generation import ChatMessages, GenerationRequest, PlainText, Structure
from services.gateway.reasoning.answer_frame import answer_frame
from services.gateway.request.job import Answer, Job, OutputPlan, TokenCounts, ValidRequest
from services.gateway.request.prompt_estimate import PromptEstimate
from services.gateway.request.tool_prompt import with_tools
from services.gateway.routing.crash_record import request_fingerprint
from services.gateway.routing.models import ServedModel
from services.gateway.text.detokenize import TextModel

# OpenAI's defaults.
DEFAULT_TEMPERATURE = 1.0
DEFAULT_TOP_P = 1.0
# Log probabilities of an echoed prompt: tokens x (1 + logprobs) x choices. Some 10 MB of JSON. The
# prompts of a list have equal parts of it.
MAX_PROMPT_LOGPROBS = 262_144
_EARLY_STOPPING: dict[bool | str, sampling_pb2.EarlyStopping] = {
    False: sampling_pb2.EARLY_STOPPING_UNSPECIFIED,
    True: sampling_pb2.EARLY_STOPPING_FULL,
    "never": sampling_pb2.EARLY_STOPPING_NEVER,
}


def with_defaults(request: GenerationRequest, text_model: TextModel) -> GenerationRequest:
    """The request with the sampling values that will be used, and with what its tools ask for.
    Raises InvalidRequest."""
    prompt = request.prompt
    if isinstance(prompt, ChatMessages) and (prompt.tools is not None or prompt.has_calls):
        request = with_tools(request, prompt, text_model)
    temperature, top_p = _temperature(request, text_model), _top_p(request)
    may_reason = isinstance(prompt, ChatMessages) and text_model.reasoning_syntax is not None
    return replace(request, temperature=temperature, top_p=top_p, may_reason=may_reason)


def check(request: GenerationRequest, model: ServedModel, num_prompt_tokens: int) -> None:
    """Check the fields whose limits depend on the model and the tokenized prompt. Raises
    InvalidRequest."""
    if num_prompt_tokens > most_prompt_tokens(request, model):
        raise InvalidRequest(
            f"the prompt has {num_prompt_tokens} tokens; "
            f"the model takes {model.max_model_len} with the answer",
            reason="context_length_exceeded",
            param="messages" if isinstance(request.prompt, ChatMessages) else "prompt",
        )
    rules = request.rules
    named = {"stop_token_ids": rules.stop_token_ids, "logit_bias": [t for t, _ in rules.logit_bias]}
    for param, ids in named.items():
        if ids and max(ids) >= model.vocab_size:
            message = f"{param}: token id {quoted(max(ids))} is not below {model.vocab_size}"
            raise InvalidRequest(message, reason="invalid_token_id", param=param)
    if request.num_prompt_logprobs is not None:
        num = num_prompt_tokens * (1 + request.num_prompt_logprobs) * request.num_choices
        most = MAX_PROMPT_LOGPROBS // _num_prompts(request)
        if num > most:
            param = "echo" if request.echo else "prompt_logprobs"
            message = f"{param}: prompt tokens x (1 + logprobs) x n is {num}; at most {most}"
            raise InvalidRequest(message, param=param)


def most_prompt_tokens(request: GenerationRequest, model: ServedModel) -> int:
    """The tokens that a prompt may have: all of the context where it is only scored."""
    return max(model.max_model_len - (request.max_tokens != 0), 1)


def plan_output(
    request: GenerationRequest,
    room: int,
    default_reservation: int,
    max_logprobs: int,
    rng: random.Random,
) -> OutputPlan:
    """The output that a request may have in `room` tokens beside its prompt. Raises
    InvalidRequest."""
    max_tokens = _within_logprobs(request, _max_tokens(request, room), max_logprobs)
    expected = _expected_tokens(request, max_tokens, default_reservation)
    return OutputPlan(max_tokens, expected, _seed(request, rng))


def reserve_estimate(
    valid: ValidRequest, estimate: PromptEstimate, default_reservation: int
) -> quota_pb2.ReserveRequest:
    """The reservation of a request whose prompt is not tokenized yet."""
    room = max(valid.model.max_model_len - estimate.num_tokens, 1)
    expected = _expected_tokens(valid.request, room, default_reservation)
    reserve = _reserve_request(valid, estimate.num_tokens, expected)
    reserve.min_prompt_tokens = estimate.fewest
    return reserve


def reserve_no_tokens(valid: ValidRequest) -> quota_pb2.ReserveRequest:
    """The reservation of a request that no model answers."""
    return quota_pb2.ReserveRequest(
        request_id=valid.request_id,
        tenant=valid.principal.tenant,
        key_id=valid.principal.key_id,
        model=valid.model.name,
    )


def reserve_exactly(valid: ValidRequest, counts: TokenCounts) -> quota_pb2.ReserveRequest:
    """The reservation that takes the place of that of an estimate."""
    reserve = _reserve_request(valid, counts.num_prompt_tokens, counts.num_expected_tokens)
    reserve.replaces_estimate = True
    return reserve


def encode_request(valid: ValidRequest, cache_key: bytes) -> tokenizer_pb2.EncodeRequest:
    """The request to the tokenizer; one token must be left for an answer, if there is one."""
    model, prompt = valid.model, valid.request.prompt
    is_prompt = valid.incoming.endpoint.generates
    encode = tokenizer_pb2.EncodeRequest(
        request_id=valid.request_id,
        tenant=valid.principal.tenant,
        model_fp=model.model_fp,
        cache_key=cache_key,
        block_size=model.block_size,
        max_prompt_tokens=most_prompt_tokens(valid.request, model) if is_prompt else 0,
        adapter=model.adapter,
    )
    if isinstance(prompt, ChatMessages):
        encode.chat.messages_json = prompt.messages_json
        if prompt.tools is not None:
            encode.chat.tools_json = prompt.tools.tools_json
        encode.chat.template_kwargs_json = prompt.template_kwargs_json
        encode.chat.add_generation_prompt = prompt.adds_generation_prompt
        encode.chat.continue_final_message = prompt.continues_final
    elif isinstance(prompt, PlainText):
        encode.text = prompt.text
    else:
        encode.token_ids = prompt.token_ids
    if valid.request.adds_special_tokens is not None:
        encode.add_special_tokens = valid.request.adds_special_tokens
    return encode


class Submission:
    """One job and the state of its answer, in the messages of routers and decode workers."""

    def __init__(self, job: Job, answer: Answer, server_secret: bytes) -> None:
        self._job = job
        self._answer = answer
        self._sampling = _sampling(job)
        self._fingerprint = _fingerprint(job, self._sampling, server_secret)
        self._session = _session(job, server_secret) if job.request.session else b""

    @property
    def starts_with_a_token(self) -> bool:
        """True when the first token comes as soon as the prompt is computed in steps of any size: a
        beam search answers at its end, and logprobs of the prompt take small steps."""
        request = self._job.request
        return request.search is None and request.num_prompt_logprobs is None

    def pick_request(self) -> router_pb2.PickRequest:
        """The request to the router for the next attempt, without the workers to leave out."""
        request, prompt, plan = self._job.request, self._job.prompt, self._job.plan
        # A beam search begins anew; other choices are prefilled with the tokens that they have.
        received = self._answer.received()
        ahead = received if request.search is None else dict.fromkeys(received, 0)
        left = plan.max_tokens - min(ahead.values())
        return router_pb2.PickRequest(
            request_id=self._job.request_id,
            model_fp=self._job.model.model_fp,
            block_hashes=prompt.block_hashes,
            num_prompt_tokens=prompt.num_tokens + max(ahead.values()),
            expected_output_tokens=min(plan.num_expected_tokens, left),
            tenant=self._job.principal.tenant,
            priority=self._job.priority,
            weight=self._job.principal.weight,
            num_choices=request.num_choices if request.search is not None else len(ahead),
            local_prefill=self._num_prompt_logprobs() >= 0 or request.vector is not None,
            poison_fingerprint=self._fingerprint,
            session=self._session,
            needs=self._needs(),
            adapter=self._job.model.adapter,
        )

    def submit_frame(self, pick: router_pb2.PickResponse) -> worker_pb2.Submit:
        """The submit of the next attempt, behind the tokens that earlier ones brought. Its epoch,
        trace and credit are set by Attempts, its handle by the link."""
        job, choices = self._job, self._answer.choices
        submit = worker_pb2.Submit(
            request_id=job.request_id,
            model_fp=job.model.model_fp,
            prompt_ids=job.prompt.token_ids,
            num_prompt_tokens=job.prompt.num_tokens,
            block_hashes=job.prompt.block_hashes,
            cache_key=job.prompt.cache_key,
            sampling=self._sampling,
            emitted=[
                worker_pb2.EmittedTokens(choice=n, token_ids=choices[n].token_ids.tobytes())
                for n, num_tokens in self._answer.received().items()
                if num_tokens
            ],
            ended_choices=[each.choice for each in choices if each.finish_reason is not None],
            deadline_ms=max(int(job.deadlines.left_s * 1000), 1),
            priority=job.priority,
            is_quiet=pick.is_quiet,
            prefill_endpoint=pick.prefill.endpoint if pick.HasField("prefill") else "",
            pools=job.request.vector is not None,
            adapter=job.model.adapter,
        )
        submit.sampling.num_prompt_logprobs = self._num_prompt_logprobs()
        return submit

    def _needs(self) -> list[str]:
        """Its parameters that not every engine serves, by their names in the API."""
        sampling = self._sampling
        is_there = {
            "use_beam_search": sampling.use_beam_search,
            "n": sampling.num_choices > 1 and not sampling.use_beam_search,
            "prompt_logprobs": self._num_prompt_logprobs() >= 0,
            "response_format": sampling.WhichOneof("structured_output") is not None,
            "embeddings": self._job.request.vector is not None,
        }
        return [name for name, is_needed in is_there.items() if is_needed]

    def _num_prompt_logprobs(self) -> int:
        """The logprobs that are still wanted of each prompt token; -1 = none, as on the wire."""
        echo = self._answer.echo
        return -1 if echo is not None and echo.is_complete else _num_prompt_logprobs(self._job)


def _reserve_request(
    valid: ValidRequest, num_prompt_tokens: int, num_expected_tokens: int
) -> quota_pb2.ReserveRequest:
    request = valid.request
    return quota_pb2.ReserveRequest(
        request_id=valid.request_id,
        tenant=valid.principal.tenant,
        key_id=valid.principal.key_id,
        # Limits and prices are of the model, whatever alias it was asked for by.
        model=valid.model.name,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_expected_tokens * request.num_choices,
        min_output_tokens=request.num_choices if request.max_tokens is None else 0,
    )


def _expected_tokens(request: GenerationRequest, room: int, default_reservation: int) -> int:
    """The tokens of a choice to reserve at first: a default where the client set no maximum."""
    max_tokens = _max_tokens(request, room)
    has_limit = request.max_tokens is not None
    return max_tokens if has_limit else min(default_reservation, max_tokens)


def _fingerprint(job: Job, sampling: sampling_pb2.Sampling, server_secret: bytes) -> bytes:
    """The request fingerprint: equal for a tenant's repeats of this request, and for no other
    request."""
    repeated = sampling_pb2.Sampling()
    repeated.CopyFrom(sampling)
    if job.request.seed is None:
        repeated.seed = 0  # drawn anew for each repeat
    parts = (
        job.principal.tenant.encode(),
        (job.model.model_fp + job.model.adapter).encode(),
        job.prompt.token_ids,
        repeated.SerializeToString(deterministic=True),
    )
    return request_fingerprint(server_secret, parts)


def _session(job: Job, server_secret: bytes) -> bytes:
    """The name of the request's session, which tells nothing of the client's own."""
    name = f"{job.principal.tenant}\0{job.request.session}".encode()
    return blake2b(name, key=server_secret[:64], digest_size=16).digest()


def _num_prompt_logprobs(job: Job) -> int:
    num_logprobs = job.request.num_prompt_logprobs
    return -1 if num_logprobs is None else num_logprobs


def _temperature(request: GenerationRequest, text_model: TextModel) -> float:
    temperature = request.temperature
    if request.search is not None:
        temperature = 0.0
    elif temperature is None:
        temperature = text_model.default_temperature
    return DEFAULT_TEMPERATURE if temperature is None else temperature


def _top_p(request: GenerationRequest) -> float:
    return DEFAULT_TOP_P if request.top_p is None else request.top_p


def _max_tokens(request: GenerationRequest, room: int) -> int:
    """Most output tokens of a choice. 0 = only the prompt is wanted: one token is still sampled,
    because that ends the prefill, and thrown away."""
    if request.max_tokens == 0:
        return 1
    return room if request.max_tokens is None else min(request.max_tokens, room)


def _within_logprobs(request: GenerationRequest, max_tokens: int, max_logprobs: int) -> int:
    """The tokens of a choice whose logprobs are not too many. Raises InvalidRequest when the client
    set a maximum that is larger."""
    if request.num_logprobs is None:
        return max_tokens
    max_logprobs //= _num_prompts(request)
    num_of_token = request.num_choices * (1 + request.num_logprobs)
    if max_tokens * num_of_token <= max_logprobs:
        return max_tokens
    if request.max_tokens is None:
        return max(max_logprobs // num_of_token, 1)
    param = "logprobs" if request.endpoint == "completions" else "top_logprobs"
    raise InvalidRequest(
        f"{param}: n x max_tokens x (1 + {param}) is {max_tokens * num_of_token}; "
        f"at most {max_logprobs}",
        param=param,
    )


def _num_prompts(request: GenerationRequest) -> int:
    """The prompts that are answered together with this one, itself included."""
    return len(request.prompts) or 1


def _seed(request: GenerationRequest, rng: random.Random) -> int:
    """The client's seed as an unsigned number, or a drawn one."""
    return rng.getrandbits(63) if request.seed is None else request.seed % 2**64


def _sampling(job: Job) -> sampling_pb2.Sampling:
    request = job.request
    rules, num_logprobs = request.rules, request.num_logprobs
    sampling = sampling_pb2.Sampling(
        temperature=_temperature(request, job.prompt.text_model),
        top_p=_top_p(request),
        top_k=rules.top_k,
        min_p=rules.min_p,
        presence_penalty=rules.presence_penalty,
        frequency_penalty=rules.frequency_penalty,
        repetition_penalty=rules.repetition_penalty,
        logit_bias=dict(rules.logit_bias),
        seed=job.plan.seed,
        max_tokens=job.plan.max_tokens,
        min_tokens=rules.min_tokens,
        ignore_eos=rules.ignore_eos,
        stop_token_ids=rules.stop_token_ids,
        num_choices=request.num_choices,
        num_logprobs=-1 if num_logprobs is None else num_logprobs,
        num_prompt_logprobs=_num_prompt_logprobs(job),
    )
    if rules.structure is not None or rules.call_rules:
        _set_form(sampling, job)
    if request.search is not None:
        sampling.use_beam_search = True
        sampling.length_penalty = request.search.length_penalty
        sampling.early_stopping = _EARLY_STOPPING[request.search.early_stopping]
    return sampling


def _set_form(sampling: sampling_pb2.Sampling, job: Job) -> None:
    """Set the form of the answer: that of its text, with calls and behind reasoning where there may
    be any."""
    rules, text_model = job.request.rules, job.prompt.text_model
    frame = answer_frame(
        rules.call_rules,
        text_model.reasoning_syntax if job.request.may_reason else None,
        job.prompt.first_place,
        text_model.mark_ids,
        has_form=rules.structure is not None,
    )
    if rules.structure is None:
        sampling.ebnf_grammar = frame
        return
    _set_structure(sampling, rules.structure)
    if job.request.may_reason or rules.call_rules:
        sampling.grammar_frame = frame


def _set_structure(sampling: sampling_pb2.Sampling, structure: Structure) -> None:
    match structure.kind:
        case "json_schema":
            sampling.json_schema = structure.text
        case "json_object":
            sampling.json_object = True
        case "regex":
            sampling.regex = structure.text
        case "choice":
            sampling.choices.values.extend(structure.choices)
        case "ebnf":
            sampling.ebnf_grammar = structure.text
