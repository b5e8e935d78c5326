"""Calls of workers to the engine's process: their order, and which ones wake the event loop."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from vivace.remote.wire import Fields
from vivace.serve.processes.engine_clients import ReceivedCalls


def call(method: str, number: int = 0) -> Fields:
    return Fields({"method": method, "number": number}, [])


@pytest.mark.parametrize("method", ["hello", "load", "lock", "unlock", "use", "suspect", "strike"])
def test_call_wakes_the_event_loop(method: str) -> None:
    assert ReceivedCalls().add(Mock(), [call("begin"), call(method), call("end")])


def test_notes_of_every_request_do_not_wake_the_event_loop() -> None:
    received = ReceivedCalls()
    assert not received.add(Mock(), [call("begin"), call("end")])
    assert not received.add(Mock(), [call("end")])


def test_calls_of_all_connections_are_taken_once_and_in_order() -> None:
    received, first, second = ReceivedCalls(), Mock(), Mock()
    received.add(first, [call("begin", 1), call("begin", 2)])
    received.add(second, [call("begin", 3)])
    received.add(first, [call("suspect", 4)])
    taken = [(connection, one.values["number"]) for connection, one in received.take()]
    assert taken == [(first, 1), (first, 2), (second, 3), (first, 4)]
    assert not list(received.take())


def test_calls_that_arrive_while_others_are_taken_are_taken_too() -> None:
    received = ReceivedCalls()
    received.add(Mock(), [call("begin", 1)])
    numbers = []
    for connection, one in received.take():
        numbers.append(one.values["number"])
        if one.values["number"] < 3:
            received.add(connection, [call("end", one.values["number"] + 1)])
    assert numbers == [1, 2, 3]
