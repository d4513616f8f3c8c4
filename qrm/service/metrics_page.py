"""The Prometheus page, served by prometheus-client on a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
    except OSError as error:
        raise ConfigError(f"metrics.listen: cannot listen on {listen}: {error}", hint='another port, or ""') from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
