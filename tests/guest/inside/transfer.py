"""TCP between network namespaces, as fast as it goes, measured where it arrives."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_SETTLES = 1.0
"""Seconds that are not counted: bursts, and the queue that fills up."""
_COUNTS = 2.0
"""Seconds that are."""
_CHUNK = bytes(1 << 16)
_BUFFER = 1 << 17
"""Bytes that arrive in one second and are counted in the next at most."""
_BITS_PER_MBIT = 1_000_000


@dataclass(frozen=True)
class Flow:
    """One connection from a namespace to another, in which `host` is an address."""

    source: str
    target: str
    host: str


def measure(*flows: Flow) -> list[float]:
    """What each of the flows carries in the same seconds, while all of them send, in Mbit/s."""
    fork = multiprocessing.get_context("fork")
    processes, receivers = [], []
    for role, port, flow in [(role, port, flow) for role in (_receive, _send) for port, flow in enumerate(flows, 7000)]:
        ours, theirs = fork.Pipe()
        process = fork.Process(target=role, args=(flow, port, theirs))
        process.start()
        processes.append(process)
        if role is _receive:
            receivers.append(ours)
            assert ours.recv() == "listens"
    assert [each.recv() for each in receivers] == ["connected"] * len(flows)
    begin = time.monotonic() + _SETTLES
    for each in receivers:
        each.send(begin)
    found = [round(each.recv(), 1) for each in receivers]
    for each in receivers:
        each.send("enough")
    for process in processes:
        process.join()
    return found


def arrives(flow: Flow, port: int) -> bool:
    """Whether a datagram to this port gets from one namespace to the other."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    receiver = fork.Process(target=_hear, args=(flow, port, theirs))
    receiver.start()
    assert ours.recv() == "listens"
    sender = fork.Process(target=_call, args=(flow, port))
    sender.start()
    sender.join()
    ours.send("sent")
    heard = bool(ours.recv())
    receiver.join()
    return heard


def enter(namespace: str) -> None:
    """Move this thread into a network namespace by its name."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(Path("/run/netns", namespace), os.O_RDONLY)
    if libc.setns(handle, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns {namespace}")
    os.close(handle)


def _receive(flow: Flow, port: int, told: Connection) -> None:
    enter(flow.target)
    with socket.create_server((flow.host, port), family=_family(flow)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        told.send("listens")
        connection, _ = server.accept()
        with connection:
            told.send("connected")
            begin = told.recv()
            _count(connection, begin)
            received = _count(connection, begin + _COUNTS)
            told.send(received * 8 / _COUNTS / _BITS_PER_MBIT)
            while not told.poll():
                connection.recv(1 << 18)


def _count(connection: socket.socket, until: float) -> int:
    received = 0
    while time.monotonic() < until:
        received += len(connection.recv(1 << 18))
    return received


def _send(flow: Flow, port: int, _: Connection) -> None:
    enter(flow.source)
    with socket.create_connection((flow.host, port)) as connection, contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(_CHUNK)


def _hear(flow: Flow, port: int, told: Connection) -> None:
    enter(flow.target)
    with socket.socket(_family(flow), socket.SOCK_DGRAM) as listener:
        listener.bind((flow.host, port))
        told.send("listens")
        assert told.recv() == "sent"
        listener.settimeout(_SETTLES)
        try:
            told.send(bool(listener.recv(100)))
        except TimeoutError:
            told.send(False)


def _call(flow: Flow, port: int) -> None:
    enter(flow.source)
    with socket.socket(_family(flow), socket.SOCK_DGRAM) as speaker:
        speaker.sendto(b"hello", (flow.host, port))


def _family(flow: Flow) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in flow.host else socket.AF_INET
