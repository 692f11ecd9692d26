"""Credit: how far the worker may run ahead of the client, within what the quota lease grants."""

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.request.payment import AHEAD_TOKENS, STEP_TOKENS, CreditMeter
from services.gateway.tenants.lease import LOW_TOKENS, Lease, Standing

EXTENSION_TOKENS = 200


class Request:
    """A meter between a worker that uses all its credit, a client and a quota service."""

    def __init__(self, num_choices: int, max_tokens: int, num_granted: int) -> None:
        self.lease = Lease("r1", "acme", "k", "demo", num_prompt_tokens=3, num_granted=num_granted)
        self.max_tokens, self.ceiling = max_tokens, num_choices * max_tokens
        self.meter = CreditMeter(
            self.lease,
            num_choices=num_choices,
            max_tokens=max_tokens,
            extension_tokens=EXTENSION_TOKENS,
        )
        self.open = set(range(num_choices))
        self.received = dict.fromkeys(self.open, 0)
        self.accepted = dict.fromkeys(self.open, 0)
        # By choice: what the worker may produce, or did produce if the choice has ended.
        self.credit = dict.fromkeys(self.open, 0)
        self.is_running = self.is_quota_away = False
        self.meter.ask_with(self._ask)
        self.move()

    def _ask(self, num_wanted: int) -> None:
        lease = self.lease
        assert lease.num_wanted <= lease.num_granted, "one ask is answered before the next"
        assert lease.num_granted < num_wanted <= self.ceiling
        lease.num_wanted = num_wanted
        if self.is_quota_away:
            self.grant()

    def _give(self, choice: int, up_to_index: int) -> None:
        assert choice in self.open
        assert up_to_index > self.credit[choice]
        self.credit[choice] = up_to_index

    def move(self) -> None:
        """The next attempt begins behind what was received, when its first tokens are paid."""
        self.meter.detach()
        begun = {choice: self.received[choice] for choice in self.open}
        self.is_running = bool(begun) and self.meter.is_paid(begun)
        if self.is_running:
            credit = self.meter.ahead(begun)
            given = {choice: num + credit for choice, num in begun.items()}
            self.credit |= given
            self.meter.attach(self._give, given)

    def receive(self, choice: int, num_tokens: int = 10_000) -> None:
        """The worker produces up to so many tokens, as far as its credit goes."""
        if choice in self.open:
            self.received[choice] = min(self.received[choice] + num_tokens, self.credit[choice])
            self._end_starved()

    def accept(self, choice: int) -> None:
        """The client takes all that was received."""
        self.accepted[choice] = self.received[choice]
        self.meter.accepted(choice, self.received[choice])

    def end(self, choice: int) -> None:
        if choice in self.open:
            self.open.discard(choice)
            self.credit[choice] = self.received[choice]
            self.meter.end_choice(choice, self.received[choice])

    def grant(self) -> None:
        """Quota grants what was asked for."""
        if self.lease.standing is not Standing.SPENT and self.lease.is_asking:
            self.lease.num_granted = self.lease.num_wanted
            self.meter.replenish()

    def refuse(self) -> None:
        if self.lease.is_asking:
            self.lease.standing = Standing.SPENT
            self.meter.replenish()
            self._end_starved()

    def _end_starved(self) -> None:
        for choice in sorted(self.open):
            if self.meter.starved(choice, self.received[choice]):
                assert self.received[choice] < self.max_tokens, "the worker ends what is complete"
                self.end(choice)

    def pump(self, choice: int) -> None:
        """The choice goes on, and its client reads, until no credit is left."""
        self.accept(choice)
        while choice in self.open and self.received[choice] < self.credit[choice]:
            self.receive(choice)
            self.accept(choice)

    def finish(self) -> None:
        """Worker, client and quota go on until nothing changes any more."""
        before = None
        while before != (before := (sum(self.received.values()), self.lease.num_credited)):
            if not self.is_running:
                self.move()
            for choice in self.credit:
                self.pump(choice)
            self.grant()

    def check(self) -> None:
        """Check the rules that hold at every moment."""
        lease = self.lease
        assert sum(self.credit.values()) <= lease.num_credited <= lease.num_granted
        if self.is_running:
            assert sum(self.credit.values()) == lease.num_credited, "no credit is kept back"
        for choice in self.open:
            assert self.credit[choice] <= self.accepted[choice] + AHEAD_TOKENS
            assert self.credit[choice] <= self.max_tokens
        for choice in self.credit.keys() - self.open:
            assert not self.meter.starved(choice, self.received[choice])
        may_ask = lease.num_granted < self.ceiling
        if may_ask and lease.num_granted - lease.num_credited < LOW_TOKENS:
            assert lease.is_asking, "asked before the credit runs out"


operation = st.tuples(
    st.sampled_from(
        ["receive", "accept", "pump", "end", "move", "grant", "refuse", "lose quota", "find quota"]
    ),
    st.integers(0, 8),
    st.integers(1, 80),
)


def apply(request: Request, name: str, choice: int, num_tokens: int) -> None:
    choice %= len(request.credit)
    if name == "receive":
        request.receive(choice, num_tokens)
    elif name in ("accept", "pump", "end"):
        getattr(request, name)(choice)
    elif name in ("move", "grant", "refuse"):
        getattr(request, name)()
    else:
        request.is_quota_away = name == "lose quota"
        request.grant()


@given(
    num_choices=st.integers(1, 9),
    max_tokens=st.integers(1, 500),
    share=st.floats(0.0, 1.2),
    operations=st.lists(operation, max_size=60),
)
def test_no_order_of_events_gives_more_credit_than_the_lease_grants_or_leaves_any_unused(
    num_choices: int, max_tokens: int, share: float, operations: list[tuple[str, int, int]]
) -> None:
    num_granted = max(1, int(share * num_choices * max_tokens))
    request = Request(num_choices, max_tokens, num_granted)
    request.check()
    for name, choice, num_tokens in operations:
        apply(request, name, choice, num_tokens)
        request.check()
    unended = set(request.open)
    request.finish()
    request.check()
    if all(request.received[choice] == max_tokens for choice in unended):
        return
    assert request.lease.standing is Standing.SPENT, (
        "only a refusal ends a choice before its maximum"
    )
    assert all(request.received[choice] == max_tokens for choice in request.open)
    assert sum(request.received.values()) == request.lease.num_granted


def test_choices_share_the_first_grant_evenly() -> None:
    request = Request(num_choices=10, max_tokens=100, num_granted=200)
    assert request.credit == dict.fromkeys(range(10), 20)
    assert request.lease.num_credited == 200


def test_a_grant_larger_than_the_maximum_gives_the_maximum() -> None:
    assert Request(num_choices=2, max_tokens=10, num_granted=50).credit == {0: 10, 1: 10}


def test_credit_goes_up_in_steps_and_at_the_end_by_what_is_left() -> None:
    request = Request(num_choices=1, max_tokens=AHEAD_TOKENS + STEP_TOKENS + 3, num_granted=1000)
    credits = []
    for _ in range(STEP_TOKENS + 3):
        request.receive(0, 1)
        request.accept(0)
        credits.append(request.credit[0])
    full = AHEAD_TOKENS + STEP_TOKENS
    assert credits == [AHEAD_TOKENS] * (STEP_TOKENS - 1) + [full] * 3 + [full + 3]


def test_a_client_that_reads_nothing_gets_no_further_credit() -> None:
    request = Request(num_choices=2, max_tokens=500, num_granted=1000)
    request.receive(0)
    request.pump(1)
    assert request.credit == {0: AHEAD_TOKENS, 1: 500}


def test_what_an_ended_choice_leaves_unused_goes_to_the_others_at_once() -> None:
    request = Request(num_choices=2, max_tokens=500, num_granted=128)
    request.pump(1)
    request.receive(0, 10)
    assert request.credit == {0: 64, 1: 64}
    request.end(0)
    assert request.credit == {0: 10, 1: 118}


def test_what_is_left_of_a_grant_does_not_wait_for_a_full_step() -> None:
    request = Request(num_choices=1, max_tokens=500, num_granted=AHEAD_TOKENS + STEP_TOKENS - 1)
    request.receive(0, 1)
    request.accept(0)
    assert request.credit == {0: AHEAD_TOKENS + 1}


def test_the_lease_says_at_any_moment_what_the_workers_may_produce() -> None:
    request = Request(num_choices=2, max_tokens=500, num_granted=1000)
    told = [request.lease.num_credited]
    request.receive(0)
    request.accept(0)
    told.append(request.lease.num_credited)
    request.end(0)
    told.append(request.lease.num_credited)
    assert told == [2 * AHEAD_TOKENS, 3 * AHEAD_TOKENS, 2 * AHEAD_TOKENS]


def test_quota_is_asked_for_one_extension_after_the_other_up_to_the_maximum() -> None:
    request = Request(num_choices=2, max_tokens=300, num_granted=300)
    wanted = [request.lease.num_wanted]
    for _ in range(4):
        request.pump(0)
        request.pump(1)
        wanted.append(request.lease.num_wanted)
        request.grant()
    assert wanted == [0, 500, 600, 600, 600]
    assert request.received == {0: 300, 1: 300}


def test_a_token_is_paid_below_the_credit_and_the_maximum_is_all_there_is() -> None:
    meter = Request(num_choices=1, max_tokens=80, num_granted=70).meter
    assert meter.is_paid({0: 63})
    assert not meter.is_paid({0: 64})
    assert meter.is_paid({0: 80})


def test_a_worker_that_takes_over_gets_each_choices_own_credit() -> None:
    request = Request(num_choices=2, max_tokens=500, num_granted=1000)
    request.pump(0)
    request.receive(1, 10)
    request.move()
    assert request.credit == {0: 500, 1: AHEAD_TOKENS}


def test_credit_that_was_raised_between_two_attempts_goes_to_the_next() -> None:
    request = Request(num_choices=1, max_tokens=500, num_granted=1000)
    request.meter.detach()
    request.receive(0, 40)
    request.accept(0)
    assert request.credit == {0: AHEAD_TOKENS}
    request.move()
    assert request.credit == {0: 40 + AHEAD_TOKENS}


def test_a_refusal_ends_a_choice_when_all_its_credit_is_used_and_not_before() -> None:
    request = Request(num_choices=1, max_tokens=500, num_granted=100)
    request.pump(0)
    assert (request.open, request.received) == ({0}, {0: 100}), "quota has not answered yet"
    request.refuse()
    assert request.open == set()


def test_a_refusal_takes_no_credit_back() -> None:
    request = Request(num_choices=1, max_tokens=500, num_granted=100)
    request.refuse()
    request.receive(0, 63)
    assert request.open == {0}
    request.pump(0)
    assert (request.open, request.received) == (set(), {0: 100})


def test_a_choice_that_has_its_maximum_is_ended_by_its_worker() -> None:
    request = Request(num_choices=2, max_tokens=50, num_granted=99)
    request.pump(0)
    request.refuse()
    assert (request.open, request.received[0]) == ({0, 1}, 50)
