import asyncio
from random import Random

import pytest

from baton.runtime.discovery.discover import AllMembers, FixedMembers, NamedMembers, discover
from baton.runtime.discovery.members import Member, Target, joined, service_target
from baton.testing.virtual_clock import VirtualClock, run_virtual


def addresses(members) -> list[str]:
    return [member.address for member in members]


class Followed:
    """The members that a source reported, in order."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []

    def __call__(self, members) -> None:
        self.told.append(addresses(members))


async def follow_for(source, seconds: float) -> list[list[str]]:
    followed = Followed()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await source.follow(followed)
    return followed.told


class Names:
    """A resolver that gives one prepared answer after the other, and then the last for ever."""

    def __init__(self, *answers: list[str] | OSError) -> None:
        self.answers = list(answers)

    async def __call__(self, name: str) -> list[str]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("10.0.0.7:7200", Target("10.0.0.7", "7200")),
        ("[::1]:7200", Target("::1", "7200")),
        ("workers.prod.svc:7200", Target("workers.prod.svc", "7200")),
        ("kubernetes:workers", Target("workers", "", True)),
        ("kubernetes:prod/workers:grpc", Target("workers", "grpc", True, "prod")),
        ("kubernetes:workers:7200", Target("workers", "7200", True)),
    ],
)
def test_a_target_names_an_address_a_name_or_a_service(text: str, target: Target) -> None:
    assert Target.parse(text) == target


@pytest.mark.parametrize(
    ("endpoint", "target"),
    [
        ("quota:7000", "kubernetes:quota:7000"),
        ("quota.prod:7000", "kubernetes:prod/quota:7000"),
        ("quota.prod.svc.cluster.local:7000", "kubernetes:prod/quota:7000"),
    ],
)
def test_the_service_of_a_name_is_its_first_label(endpoint: str, target: str) -> None:
    assert service_target(endpoint) == target


@pytest.mark.parametrize(
    "text", ["", "host", ":7200", "host:port", "host:70000", "kubernetes:", "kubernetes:a/b/c"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        Target.parse(text)


def test_addresses_are_written_as_one_dials_them() -> None:
    assert joined("10.0.0.7", 80) == "10.0.0.7:80"
    assert joined("::1", 80) == "[::1]:80"


def test_a_name_stands_for_all_its_addresses_and_failures_change_nothing() -> None:
    away, gone = OSError("server failed"), OSError("name not known")
    names = Names(["10.0.0.2", "10.0.0.1", "fd00::1"], away, ["10.0.0.1", "10.0.0.2"], gone)
    names.answers += [["10.0.0.3"], ["fd00::1"], away]
    source = NamedMembers(Target.parse("workers:7200"), Random(1), names)
    told = run_virtual(follow_for(source, 600), VirtualClock())
    assert told == [["10.0.0.1:7200", "10.0.0.2:7200"], ["10.0.0.3:7200"], ["[fd00::1]:7200"]]


def test_several_sources_are_one() -> None:
    named = NamedMembers(Target.parse("w:1"), Random(1), Names(["10.0.0.1"], ["10.0.0.2"]))
    source = AllMembers([FixedMembers(["10.9.9.9:1", "10.0.0.2:1"]), named])
    told = run_virtual(follow_for(source, 60), VirtualClock())
    assert told[0] == ["10.0.0.2:1", "10.9.9.9:1"]
    assert told[-2] == ["10.0.0.1:1", "10.0.0.2:1", "10.9.9.9:1"]
    assert told[-1] == ["10.0.0.2:1", "10.9.9.9:1"]


def test_fixed_addresses_need_no_resolver() -> None:
    async def scenario() -> list[list[str]]:
        return await follow_for(await discover(["127.0.0.1:1", "[::1]:2"], Random(1)), 60)

    assert run_virtual(scenario(), VirtualClock()) == [["127.0.0.1:1", "[::1]:2"]]
    assert Member("a:1") < Member("b:1")
