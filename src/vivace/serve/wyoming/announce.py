"""Announces the server by Zeroconf, so that Home Assistant discovers it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from vivace.errors import RequestError
from vivace.serve.settings import ServeSettings

SERVICE = "_wyoming._tcp.local."
MULTICAST = ("224.0.0.251", 1)  # Zeroconf's group, to find the outgoing address


@asynccontextmanager
async def announced(settings: ServeSettings, listener: socket.socket) -> AsyncIterator[None]:
    """Announce the listener inside the block, if the settings enable it."""
    if not settings.zeroconf:
        yield
        return
    from zeroconf import Error, InterfaceChoice
    from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

    host, port = listener.getsockname()[:2]
    address = own_address() if host in ("0.0.0.0", "::") else host  # nosec B104
    name = f"vivace-{socket.gethostname().partition('.')[0]}-{port}"
    service = AsyncServiceInfo(
        SERVICE, f"{name}.{SERVICE}", parsed_addresses=[address], port=port, server=f"{name}.local."
    )
    try:
        group = AsyncZeroconf(interfaces=InterfaceChoice.All if address != host else [address])
    except OSError as error:
        raise RequestError(f"--zeroconf cannot use the network: {error}") from error
    try:
        await (await group.async_register_service(service))
        yield
        await (await group.async_unregister_service(service))
    except Error as error:
        raise RequestError(f"--zeroconf cannot announce {name!r}: {error}") from error
    finally:
        await group.async_close()


def own_address() -> str:
    """The address by which other machines reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(MULTICAST)
        except OSError as error:
            raise RequestError(f"--zeroconf needs a network: {error.strerror}") from error
        return str(probe.getsockname()[0])
