"""The qrm command."""

from __future__ import annotations

import asyncio
import io
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, TypeVar

import click
from msgspec.structs import replace
from rich.console import Console, RenderableType

from qrm import __version__
from qrm.cli import client, render_explain, render_plan, render_pods, render_status, render_topology
from qrm.cli.calibrate import calibrate_io
from qrm.cli.client import Client, NotRunning
from qrm.cli.failures import Commands
from qrm.cli.manifest import read_manifest
from qrm.cli.output import has_colours, make_console, print_json, print_parts
from qrm.cli.parameters import ANNOTATION, QUANTITY, config_option, read_config
from qrm.cli.plugin import plugin
from qrm.errors import QrmError
from qrm.pods.model import QosLevel
from qrm.pods.qos import QOS_LEVEL
from qrm.service import api
from qrm.service.views import topology as machine_view
from qrm.topology.sysfs import SYSFS, read_machine

Command = TypeVar("Command", bound=Callable[..., Any])


def main() -> None:
    """The entry point. A terminal that cannot show a character gets a question mark, not a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    cli(prog_name="qrm")


def _json_option(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qrm")
@click.option(
    "--socket",
    type=click.Path(path_type=Path),
    default=client.SOCKET,
    show_default=True,
    envvar="QRM_ADMIN_SOCKET",
    show_envvar=True,
    help="The running service's admin socket.",
)
@click.pass_context
def cli(context: click.Context, socket: Path) -> None:
    """Node resource manager for Kubernetes: pins containers between kubelet and containerd."""
    context.obj = Client(socket)


@cli.command()
@config_option
@click.option("--take-over", is_flag=True, help="Take the place of a qrm that runs without systemd.")
def serve(config_file: Path | None, *, take_over: bool) -> None:
    """Run the service, until SIGTERM. SIGHUP reads FILE again.

    No call is lost when it is restarted or replaced: it finishes those that are under way, and new ones wait for the
    next process. A second SIGTERM ends it at once.
    """
    import uvloop

    from qrm.service import logs
    from qrm.service.serve import serve as run_service

    config = read_config(config_file)
    logs.configure(config.log)
    try:
        uvloop.run(run_service(config, source=config_file, replace=take_over))
    except OSError as error:
        raise QrmError(f"cannot serve: {error}", hint="qrm serve needs root, and paths that it can write") from error


@cli.command()
@_json_option
@click.pass_obj
def status(service: Client, *, as_json: bool) -> None:
    """Show the service, its pools and what is free."""
    answer = service.status()
    _show(answer, as_json, lambda _: render_status.status(answer, time.time()))


@cli.command()
@_json_option
@click.option("--sysfs", type=click.Path(path_type=Path), help="Draw this sysfs, without asking the service.")
@click.pass_obj
def topology(service: Client, sysfs: Path | None, *, as_json: bool) -> None:
    """Draw the machine, and who holds each CPU."""
    answer, unknown = _topology(service, sysfs)
    if unknown:
        click.echo(f"qrm: who holds the CPUs is not known: {unknown}", err=True)
    _show(answer, as_json, lambda console: [_drawing(answer, console, known=not unknown)])


def _drawing(answer: api.Topology, console: Console, *, known: bool) -> RenderableType:
    return render_topology.topology(answer, width=console.width, colours=has_colours(console), known=known)


def _topology(service: Client, sysfs: Path | None) -> tuple[api.Topology, str]:
    """The machine, and why it is not known who holds it; empty where it is."""
    if sysfs is not None:
        return machine_view(read_machine(sysfs), None, None), f"read from {sysfs}"
    try:
        return service.topology(), ""
    except NotRunning as error:
        return machine_view(read_machine(SYSFS), None, None), error.message


@cli.command()
@_json_option
@click.pass_obj
def pods(service: Client, *, as_json: bool) -> None:
    """List all containers and where they run."""
    answer = service.pods()
    _show(answer, as_json, lambda _: render_pods.pods(answer))


@cli.command()
@_json_option
@click.argument("wanted", metavar="POD[/CONTAINER]")
@click.pass_obj
def explain(service: Client, wanted: str, *, as_json: bool) -> None:
    """Tell why a container runs where it runs.

    POD may have its namespace in front; a pod's uid or the beginning of a container's id will do as well.
    """
    answer = service.explain(wanted)
    _show(answer, as_json, lambda _: render_explain.explain(answer))


@cli.command()
@_json_option
@click.option("--cpu", type=QUANTITY, metavar="QUANTITY", help="Plan one container that asks for this: 2, 500m.")
@click.option("--file", "file", type=click.File("rb"), metavar="POD.json", help="Plan this manifest; - for stdin.")
@click.option("--qos", type=click.Choice([str(level) for level in QosLevel]), help="The pod's QoS level.")
@click.option(
    "--annotation",
    "annotations",
    type=ANNOTATION,
    multiple=True,
    metavar="KEY=VALUE",
    help="One of the pod's annotations; KEY may be without katalyst.kubewharf.io/. May be repeated.",
)
@click.pass_context
def plan(
    context: click.Context,
    cpu: int | None,
    file: IO[bytes] | None,
    qos: str | None,
    annotations: tuple[tuple[str, str], ...],
    *,
    as_json: bool,
) -> None:
    """Tell what would happen to a pod, without it.

    The exit code is 1 where it would be refused. --qos and --annotation replace what a manifest says. Init containers
    are not planned, unless they are sidecars.
    """
    asked = _asked(cpu, file)
    said = {**asked.annotations, **dict(annotations), **({QOS_LEVEL: qos} if qos else {})}
    answer = context.obj.plan(replace(asked, annotations=said))
    _show(answer, as_json, lambda _: render_plan.plan(answer))
    context.exit(0 if answer.fits else 1)


def _asked(cpu: int | None, file: IO[bytes] | None) -> api.PlanRequest:
    """The pod to plan, of which one of the two must tell."""
    if file is not None and cpu is None:
        return read_manifest(file.read(), str(getattr(file, "name", "<stdin>")))
    if cpu is not None and file is None:
        return api.PlanRequest({}, {"main": cpu})
    raise click.UsageError("Give either --cpu or --file.")


@cli.command()
@_json_option
@click.pass_obj
def doctor(service: Client, *, as_json: bool) -> None:
    """Tell what works on this node, what does not, and why."""
    answer = service.doctor()
    _show(answer, as_json, lambda _: [render_status.doctor(answer)])


@cli.command()
@_json_option
@config_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def reset(context: click.Context, config_file: Path | None, *, yes: bool, as_json: bool) -> None:
    """Undo what qrm has done on this node.

    The service must be stopped. Running containers may use the CPUs of the whole machine again; then the ledger is
    removed. The exit code is 1 where that did not work for all of them.
    """
    from qrm.service import logs
    from qrm.service.reset import reset as undo

    config = read_config(config_file)
    logs.configure(config.log)
    if not yes:
        click.confirm("Take all containers off their CPUs and forget who held what?", abort=True, err=True)
    try:
        report = asyncio.run(undo(config))
    except OSError as error:
        raise QrmError(f"cannot reset: {error}", hint="qrm reset needs root") from error
    _show(report, as_json, lambda _: render_status.reset(report))
    context.exit(1 if report.failed else 0)


@cli.command()
@_json_option
@click.option("--simulated", is_flag=True, help="Do not use containerd, even where it could be.")
@click.pass_context
def demo(context: click.Context, *, simulated: bool, as_json: bool) -> None:
    """Show qrm at work, on a containerd of its own.

    The exit code is 1 where something did not come out as it should.
    """
    from qrm.demo.story import run

    context.exit(0 if asyncio.run(run(simulated=simulated, console=make_console(), as_json=as_json)) else 1)


def _show(answer: object, as_json: bool, draw: Callable[[Console], Iterable[RenderableType]]) -> None:
    if as_json:
        print_json(answer)
    else:
        console = make_console()
        print_parts(console, draw(console))


cli.add_command(plugin)
cli.add_command(calibrate_io)


if __name__ == "__main__":
    main()
