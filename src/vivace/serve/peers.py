"""Interfaces of the limits that count over all workers of one server.

A server of one process has no peers. `processes/shared_counts.py` implements the interfaces.
"""

from __future__ import annotations

from typing import Protocol


class PeerConnections(Protocol):
    """The connections of one listener in all workers."""

    def add(self, address: str, number: int) -> None:
        """Count `number` connections of this worker, or subtract them if it is negative."""

    def num_elsewhere(self, address: str | None = None) -> int:
        """Connections of the other workers: all, or those of one address."""


class Peers(Protocol):
    @property
    def http(self) -> PeerConnections: ...

    @property
    def wyoming(self) -> PeerConnections: ...

    @property
    def announces(self) -> bool:
        """Whether this worker announces the server on the network."""

    def spend(self, name: str, limit: int, now: float) -> float:
        """Take one request from a client's bucket. Returns the requests that were left before."""
