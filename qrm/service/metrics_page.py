"""The Prometheus page, served by prometheus-client on a thread of its own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from socketserver import TCPServer
from threading import Thread

from prometheus_client import CollectorRegistry, start_http_server

from qrm.config import split_address
from qrm.errors import ConfigError


@contextmanager
def metrics_page(listen: str, registry: CollectorRegistry) -> Iterator[None]:
    """Serve `registry` on `listen` (HOST:PORT) while the context is open; nothing is served where it is empty.

    Raises:
        ConfigError: the address cannot be used.
    """
    if not listen:
        yield
        return
    host, port = split_address(listen)
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, UnicodeError) as error:  # a host that can be no name fails to be encoded as one
        raise ConfigError(f"metrics.listen: cannot listen on {listen}: {error}", hint='another port, or ""') from error
    try:
        yield
    finally:
        _shut_down(server)
        thread.join()


def _shut_down(server: TCPServer) -> None:
    """End the server's loop, which looks twice a second whether it is to end, or when somebody connects."""
    stopping = Thread(target=server.shutdown)
    stopping.start()
    with suppress(OSError), socket.socket(server.address_family) as knock:
        knock.connect(server.server_address)
    stopping.join()
    server.server_close()
