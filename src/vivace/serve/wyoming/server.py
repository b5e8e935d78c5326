"""The Wyoming listener: accepts, limits and ends sessions."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from functools import partial

from wyoming.error import Error

from vivace.serve.context import ServeContext
from vivace.serve.errors import Failure
from vivace.serve.http.access import Access
from vivace.serve.wyoming.announce import announced
from vivace.serve.wyoming.frames import MAX_HEADER_BYTES, encode_event
from vivace.serve.wyoming.session import WyomingSession

STOPPING = Failure(503, "the server is shutting down; try again later", "draining")
TOO_MANY = Failure(503, "too many connections; try again later", "too_many_connections")


class WyomingServer:
    """Serves one listener. A drain waits for active speech."""

    def __init__(self, context: ServeContext) -> None:
        self._context = context
        self._access = Access(context.settings, context.peers)
        self._sessions: dict[WyomingSession, asyncio.Task[None]] = {}
        self._addresses: dict[WyomingSession, object] = {}

    @property
    def num_connections(self) -> int:
        return len(self._sessions)

    @asynccontextmanager
    async def serving(self, listener: socket.socket) -> AsyncIterator[None]:
        """Serve connections inside the block, and end them when it is left."""
        server = await asyncio.start_server(self._accept, sock=listener, limit=MAX_HEADER_BYTES)
        draining = asyncio.ensure_future(self._drain(server))
        try:
            peers = self._context.peers
            announces = peers is None or peers.announces
            async with announced(self._context.settings, listener) if announces else nullcontext():
                yield
        finally:
            draining.cancel()
            server.close()
            for session in list(self._sessions):
                session.end(STOPPING)
            tasks = (draining, *self._sessions.values())
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self, server: asyncio.Server) -> None:
        await self._context.streams.draining.wait()
        server.close()  # sessions end after their active speech

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        if self._has_too_many(peer and peer[0]):
            with suppress(OSError):
                writer.write(encode_event(Error(TOO_MANY.message, TOO_MANY.code).event()))
                writer.close()
            return
        check_rate = partial(self._access.check_rate, peer[0] if peer else "-")
        session = WyomingSession(reader, writer, self._context, check_rate)
        task = asyncio.current_task()
        assert task is not None
        self._sessions[session], self._addresses[session] = task, peer and peer[0]
        self._count(peer, 1)
        try:
            await session.run()
        finally:
            self._count(peer, -1)
            del self._sessions[session], self._addresses[session]

    def _count(self, peer: tuple[str, int] | None, number: int) -> None:
        if self._context.peers is not None and peer:
            self._context.peers.wyoming.add(peer[0], number)

    def _has_too_many(self, address: object) -> bool:
        settings, addresses = self._context.settings, list(self._addresses.values())
        num_all, num_same = len(addresses), addresses.count(address)
        if self._context.peers is not None:
            num_all += self._context.peers.wyoming.num_elsewhere()
            num_same += self._context.peers.wyoming.num_elsewhere(str(address))
        has_many = num_same >= settings.max_connections_per_address
        return has_many or num_all >= settings.max_connections
