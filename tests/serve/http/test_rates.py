"""The request rate of a client, allowed origins and path prefixes."""

from __future__ import annotations

import pytest

from vivace.serve.errors import RefusedError
from vivace.serve.http import access
from vivace.serve.http.access import Access, route_path
from vivace.serve.settings import ServeSettings

PER_MINUTE = 3


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(access, "time", clock)
    return clock


def limited() -> Access:
    return Access(ServeSettings(max_requests_per_minute=PER_MINUTE))


def num_allowed(rates: Access, name: str, num_requests: int = PER_MINUTE + 2) -> int:
    allowed = 0
    for _ in range(num_requests):
        try:
            rates.check_rate(name)
        except RefusedError:
            continue
        allowed += 1
    return allowed


def test_idle_client_has_one_minute_of_requests(clock: Clock) -> None:
    rates = limited()
    assert num_allowed(rates, "a") == PER_MINUTE
    clock.now += 3_600.0
    assert num_allowed(rates, "a") == PER_MINUTE


def test_refused_requests_do_not_lengthen_the_wait(clock: Clock) -> None:
    rates = limited()
    num_allowed(rates, "a", 100)
    with pytest.raises(RefusedError) as refused:
        rates.check_rate("a")
    assert refused.value.retry_s == pytest.approx(60 / PER_MINUTE)
    clock.now += 60 / PER_MINUTE
    assert num_allowed(rates, "a") == 1


def test_clients_have_their_own_rates_and_the_least_recent_one_is_forgotten(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "MAX_PEERS", 2)
    rates = limited()
    assert [num_allowed(rates, name) for name in "aba"] == [PER_MINUTE, PER_MINUTE, 0]
    assert num_allowed(rates, "c") == PER_MINUTE
    assert num_allowed(rates, "a") == 0
    assert num_allowed(rates, "b") == PER_MINUTE


def test_allowed_origin_may_be_configured_with_a_slash() -> None:
    origin = "https://app.example"
    rules = Access(ServeSettings(allowed_origins=(f"{origin}/",)))
    assert rules.check_origin({"origin": origin, "host": "speech.example"}) == origin


@pytest.mark.parametrize(
    ("path", "route"),
    [("/tts/health", "/health"), ("/tts", "/"), ("/health", "/health"), ("/ttspage/", "/ttspage/")],
)
def test_route_has_no_path_prefix_of_a_proxy(path: str, route: str) -> None:
    assert route_path({"path": path, "root_path": "/tts"}) == route
