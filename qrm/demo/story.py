"""`qrm demo`: pods come, die, change and go as under kubelet, and after each step ledger and kernel are compared."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from rich.console import Console
from rich.markup import escape

from qrm.demo.acts import Acts
from qrm.demo.cast import cast_for
from qrm.demo.judge import settled
from qrm.demo.report import Printer, Step, Story, document
from qrm.demo.stage import real_stage, simulated_stage, why_not_real
from qrm.errors import QrmError
from qrm.topology.machine import Machine

_WAY_AROUND = "qrm demo --simulated needs neither root nor containerd"


async def run(*, simulated: bool, console: Console, as_json: bool) -> bool:
    """Play the story and print it to `console`; nothing of it is left on the machine, also not after Ctrl-C.

    Where containerd cannot run, a simulated node takes its place, which is said first.

    Args:
        simulated: Do not even try containerd.
        console: Where to print.
        as_json: Print one JSON document at the end instead.

    Returns:
        Whether ledger and kernel agreed after every step.

    Raises:
        QrmError: the story could not be played to its end.
    """
    quiet = Console(quiet=True) if as_json else console
    note = "" if simulated else why_not_real()
    simulated = simulated or bool(note)
    if note:
        quiet.print(escape(note), style="yellow")
    try:
        with _orderly_end():
            story = await _played(quiet, note, simulated=simulated)
    except (QrmError, grpc.aio.AioRpcError, OSError) as error:
        raise _failure(error, "" if simulated else _WAY_AROUND) from error
    if as_json:
        console.out(document(story), highlight=False)
    else:
        Printer(console).closing(story)
    return story.agreed


async def _played(console: Console, note: str, *, simulated: bool) -> Story:
    started = time.monotonic()
    printer = Printer(console)
    steps: list[Step] = []
    with console.status("starting") as status:
        async with simulated_stage() if simulated else real_stage() as stage:
            machine = _described(stage.machine)
            printer.opening(simulated=simulated, machine=machine, runtime=stage.runtime)
            status.update("playing")
            acts = Acts(stage, cast_for(stage.machine))
            for act in acts.all():
                told = await act()
                rows = await settled(stage, acts.actors)
                agreed = not told.problem and not any(row.problem for row in rows)
                steps.append(Step(told.said, told.quote, told.problem, rows, agreed))
                printer.step(steps[-1])
            status.update("removing everything")
    seconds = round(time.monotonic() - started, 1)
    agreed = all(step.agreed for step in steps)
    return Story(simulated, note, machine, stage.runtime, tuple(steps), agreed, seconds)


@contextmanager
def _orderly_end() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, so that it can clean up."""
    loop, playing = asyncio.get_running_loop(), asyncio.current_task()
    told = False

    # Not by raising SIGINT: a shell's background job ignores it.
    def end() -> None:
        nonlocal told
        told = True
        if playing is not None:
            playing.cancel()

    numbers = (signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, end)
    try:
        yield
    except asyncio.CancelledError:
        if told:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _failure(error: Exception, hint: str) -> QrmError:
    if isinstance(error, QrmError):
        return QrmError(error.message, hint="; ".join(each for each in (error.hint, hint) if each))
    if isinstance(error, grpc.aio.AioRpcError):
        return QrmError(f"the runtime answered {error.code().name}: {error.details()}", hint=hint)
    return QrmError(str(error) or "the node did not get ready in time", hint=hint)


def _described(machine: Machine) -> str:
    counts = {
        "socket": len(machine.sockets),
        "NUMA node": len(machine.cpu_nodes),
        "core": len(machine.cores),
        "CPU": len(machine.online),
    }
    return ", ".join(f"{number} {noun}{'' if number == 1 else 's'}" for noun, number in counts.items())
