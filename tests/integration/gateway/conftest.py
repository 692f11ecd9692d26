"""What holds for every test here."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def patient_gateway() -> Iterator[None]:
    """Let quota be silent for long: on a busy machine it would seem to be away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("services.gateway.tenants.quota_outage.SILENCE_S", 10.0)
        yield
