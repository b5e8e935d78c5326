"""Reads the certificates of httpx's clients once per process.

Each client reads them, which takes 56 ms of CPU time on a Neoverse-N1, also for http:// addresses.
Tests create thousands of clients, most of them with `httpx.get` and `httpx.post`.
"""

from __future__ import annotations

import os
import ssl
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def share_certificates() -> None:
    """Let all clients with the same options and environment have one SSL context.

    A machine that runs only the tests of the GPU may not have httpx.
    """
    if not find_spec("httpx"):
        return
    transports = import_module("httpx._transports.default")
    create = transports.create_ssl_context

    @cache
    def create_once(_environment: object, *arguments: Any, **named: Any) -> ssl.SSLContext:
        context: ssl.SSLContext = create(*arguments, **named)
        return context

    def create_shared(*arguments: Any, **named: Any) -> ssl.SSLContext:
        environment = tuple(map(os.environ.get, VARIABLES))
        return create_once(environment, *arguments, **named)

    vars(transports)["create_ssl_context"] = create_shared
