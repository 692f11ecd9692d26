"""Steps that begin before the last one's tokens are known: nobody can tell but by the clock."""

import random

from baton.engine.protocol.messages import Abort, AddSequence, Command, Credit
from baton.testing.device_runner import AheadFakeRunner
from baton.testing.engine_driver import PLENTY_OF_CREDIT, EngineDriver, add_sequence
from baton.wire.limits import NUM_TOKENS_ALONE

NUM_SEEDS = 8
NUM_TURNS = 120


def make_driver(**sizes: int) -> EngineDriver:
    options = {"num_blocks": 60, "max_num_seqs": 8, "max_step_tokens": 32} | sizes
    return EngineDriver(AheadFakeRunner(block_size=4, mean_output_tokens=30), **options)


def lone_output(driver: EngineDriver, add: AddSequence, prompt: list[int]) -> list[int]:
    return driver.runner.lone_run(prompt, add.sampling, add.choice)


def test_a_decode_goes_on_from_a_token_that_only_the_runner_knows():
    driver = make_driver()
    driver.step(add_sequence(1, range(5), max_tokens=12, ignore_eos=True))
    driver.run()
    assert driver.tokens[1] == driver.runner.lone_run(
        range(5), add_sequence(1, range(5), max_tokens=12, ignore_eos=True).sampling
    )
    # All but the first token, of the prompt, and the second, whose decode begins after that.
    assert driver.runner.num_ahead == 10
    assert driver.num_free_blocks == 60


def test_a_step_beyond_an_end_is_thrown_away():
    driver = make_driver()
    sampling = add_sequence(1, range(5), max_tokens=12, ignore_eos=True).sampling
    output = driver.runner.lone_run(range(5), sampling)
    end = output[6]
    stop = {"max_tokens": 12, "ignore_eos": True, "stop_token_ids": [end]}
    driver.step(add_sequence(1, range(5), **stop))
    driver.run()
    assert driver.tokens[1] == output[: output.index(end) + 1]
    assert driver.finished == {1: "stop"}
    assert driver.runner.num_ahead == output.index(end)
    assert driver.num_free_blocks == 60


def test_nothing_is_computed_beyond_max_tokens_or_credit():
    driver = make_driver()
    driver.step(
        add_sequence(1, range(5), max_tokens=4, ignore_eos=True),
        add_sequence(2, range(9), max_tokens=9, credit=4, ignore_eos=True),
    )
    driver.run()
    assert {seq_id: len(tokens) for seq_id, tokens in driver.tokens.items()} == {1: 4, 2: 4}
    assert driver.runner.num_ahead == 2 * 2


def test_a_deadline_tells_only_tokens_that_went_out():
    driver = make_driver()
    driver.step(add_sequence(1, range(5), max_tokens=50, ignore_eos=True, deadline=1.0))
    for _ in range(6):
        driver.step()
    driver.clock.advance(2.0)
    driver.step()
    [finished] = driver.events.finished
    assert finished.num_output_tokens == len(driver.tokens[1])
    driver.run()
    assert finished.num_output_tokens == len(driver.tokens[1])


def test_the_time_of_steps_is_told_and_that_between_them_is_not_when_nothing_runs():
    driver, times = make_driver(), []
    driver.step(add_sequence(1, range(5), max_tokens=8, credit=3, ignore_eos=True))
    driver.run()
    driver.clock.advance(100.0)
    launch = driver.runner.launch
    driver.runner.launch = lambda batch: (driver.clock.advance(1.0), launch(batch))[1]
    driver.step(Credit(1, 8))
    while driver.engine.has_work:
        driver.step()
        times.append((driver.events.busy_us, sum(driver.events.spent_us)))
    assert [sum(column) for column in zip(*times, strict=True)] == [5_000_000, 5_000_000]


class Page:
    """Takes what a core's progress page would be told."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, ...]] = []

    def begin_step(self, step: int, request_ids: tuple[str, ...], expected_s: float | None) -> None:
        self.steps.append(request_ids)


def test_the_page_names_the_requests_of_both_steps_and_a_suspect_is_alone():
    driver, page, reports = make_driver(), Page(), []
    long = add_sequence(1, range(5), max_tokens=70, ignore_eos=True)
    suspect = add_sequence(2, range(9), max_tokens=30, ignore_eos=True, is_suspect=True)
    arrivals = {0: [long], 5: [suspect]}
    for turn in range(90):
        driver.engine.turn(arrivals.get(turn, []), page, reports.append)
    tokens_of = [events.token_seq_ids for events in reports]
    assert [sum(ids.count(seq_id) for ids in tokens_of) for seq_id in (1, 2)] == [70, 30]
    # It has proved harmless when both are named; a step of the other one is never begun beside it.
    first_shared = page.steps.index(("request-1", "request-2"))
    assert page.steps.count(("request-2",)) == NUM_TOKENS_ALONE
    assert page.steps[:first_shared].count(("request-2",)) == NUM_TOKENS_ALONE
    # One step more than it shares: the one that began beside its last.
    assert page.steps.count(("request-1", "request-2")) == 30 - NUM_TOKENS_ALONE + 1
    assert driver.runner.num_ahead > 60


class Traffic:
    """Random commands of a front, whatever the engine answers; sequences of several kinds."""

    def __init__(self, seed: int, driver: EngineDriver) -> None:
        self._rng = random.Random(seed)
        self._driver = driver
        self._prefixes = [self._tokens(12) for _ in range(2)]
        self._is_plain = seed % 3 > 0
        self.expected: dict[int, list[int]] = {}
        self.aborted: set[int] = set()

    def commands(self) -> list[Command]:
        rng, commands = self._rng, list[Command]()
        if rng.random() < 0.2:
            commands.append(self._add())
        if self.expected and rng.random() < 0.3:
            seq_id = rng.choice(list(self.expected))
            commands.append(Credit(seq_id, rng.randint(1, 30)))
        if self.expected and rng.random() < 0.03:
            self.aborted.add(seq_id := rng.choice(list(self.expected)))
            commands.append(Abort(seq_id))
        return commands

    def _add(self) -> AddSequence:
        rng, seq_id = self._rng, 10 * len(self.expected)
        prompt = rng.choice(self._prefixes)[: rng.randint(1, 12)] + self._tokens(rng.randint(1, 30))
        fields = {
            "max_tokens": rng.randint(1, 30),
            "credit": rng.choice([rng.randint(1, 10), PLENTY_OF_CREDIT, PLENTY_OF_CREDIT]),
            "priority": rng.choice([0, 0, 1]),
            "choice": rng.randint(0, 3),
            "stop_token_ids": rng.sample(range(900), 3),
            "ignore_eos": rng.random() < 0.3,
            "num_logprobs": None if self._is_plain else rng.choice([None, 2]),
        }
        add = add_sequence(seq_id, prompt, **fields)
        self.expected[seq_id] = lone_output(self._driver, add, prompt)
        return add

    def _tokens(self, number: int) -> list[int]:
        return [self._rng.randrange(900) for _ in range(number)]


def test_random_traffic_gets_the_tokens_of_each_request_alone():
    num_ahead = num_preemptions = 0
    for seed in range(NUM_SEEDS):
        driver = make_driver(num_blocks=random.Random(seed).choice([20, 24, 40]))
        traffic = Traffic(seed, driver)
        for _ in range(NUM_TURNS):
            num_preemptions += driver.step(*traffic.commands()).num_preemptions
        driver.step(*[Credit(seq_id, PLENTY_OF_CREDIT) for seq_id in traffic.expected])
        driver.run()
        for seq_id, expected in traffic.expected.items():
            tokens = driver.tokens.get(seq_id, [])
            assert tokens == expected[: len(tokens)], (seed, seq_id)
            assert seq_id in traffic.aborted or len(tokens) == len(expected), (seed, seq_id)
        assert driver.num_free_blocks == driver.config.num_blocks, seed
        num_ahead += driver.runner.num_ahead
    assert num_ahead > 30 * NUM_SEEDS
    assert num_preemptions > NUM_SEEDS / 2
