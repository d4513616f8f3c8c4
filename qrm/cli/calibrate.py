"""`qrm calibrate-io`: what a disk can do."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from qrm.cli.output import print_json
from qrm.cli.parameters import BYTES, config_option, read_config
from qrm.enforcement.isolation.io_cost import calibrate, measured
from qrm.enforcement.isolation.io_cost.disks import Host, find
from qrm.enforcement.isolation.io_cost.fio import Job, Outcome
from qrm.enforcement.isolation.io_cost.model import ModelLine, QosLine, format_model, format_qos
from qrm.errors import QrmError

_MIB = 1 << 20


@click.command("calibrate-io")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@config_option
@click.option(
    "--file",
    "directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="DIR",
    help="Write and read a file in this directory, which is on the disk; nothing is left of it.",
)
@click.option("--write", is_flag=True, help="Write all over the disk, which must be empty.")
@click.option(
    "--seconds", type=click.FloatRange(0.2, 120), default=10.0, show_default=True, help="For each measurement, at most."
)
@click.option(
    "--bytes",
    "most",
    type=BYTES,
    default="8Gi",
    show_default=True,
    metavar="QUANTITY",
    help="The same, in bytes moved.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.argument("device")
def calibrate_io(
    device: str,
    config_file: Path | None,
    directory: Path | None,
    most: int,
    seconds: float,
    *,
    write: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Measure what DEVICE can do, for the kernel's io.cost.

    The disk should do nothing else meanwhile. Without --file or --write it is only read, and what it can write is taken
    to be in proportion. The running service uses what was found from its next round of repair on.
    """
    from qrm.service import logs

    if directory is not None and write:
        raise click.UsageError("Give either --file or --write.")
    config = read_config(config_file)
    logs.configure(config.log)
    host = Host(sysfs=Path(config.host.sysfs))
    disk = find(device, host)
    way: measured.Way = "write" if write else "file" if directory is not None else "read"
    request = calibrate.Request(disk, way, directory, seconds, most)
    calibrate.check(request, host)
    if not yes:
        _ask(request)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the disk's queue is put back as it was
    found = calibrate.measure(request, cgroup=Path(config.host.cgroup), host=host, tell=_tell)
    try:
        path = measured.save(Path(config.state.directory), found)
    except OSError as error:
        raise QrmError(f"cannot save what was measured: {error}", hint="check state.directory") from error
    if as_json:
        print_json(found)
    else:
        _print(found, path)


def _ask(request: calibrate.Request) -> None:
    """Nothing is written without a person's consent."""
    name = request.disk.name
    if request.way == "file":
        amount = 3 * request.most // _MIB
        click.confirm(f"Write up to {amount} MiB into a file in {request.directory}, on {name}?", abort=True, err=True)
    elif request.way == "write":
        text = f"Everything on {name} ({request.disk.size // _MIB} MiB, {request.disk.identity}) is lost. Type {name}"
        if click.prompt(text, err=True) != name:
            raise click.Abort


def _tell(job: Job, outcome: Outcome) -> None:
    click.echo(f"{job.name}: {outcome.rate / 1e6:.1f} MB/s, {outcome.operations:.0f} operations/s", err=True)


def _print(found: measured.Measurement, path: Path) -> None:
    params = found.params()
    click.echo(f"io.cost.model: {found.number} {format_model(ModelLine(True, params.model))}")
    click.echo(f"io.cost.qos: {found.number} {format_qos(QosLine(True, True, params.qos))}")
    if found.assumed:
        click.echo(f"not measured, but in proportion: {', '.join(found.assumed)}")
    for doubt in found.doubts:
        click.echo(f"doubtful: {doubt}")
    click.echo(f"saved in {path}")
