"""`qrm plugin`: our allocators for others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from qrm.cli.parameters import config_option, read_config


@click.group()
def plugin() -> None:
    """Offer qrm's allocators to others, over Katalyst's QRM protocol."""


@plugin.command()
@config_option
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Where the socket is put: the other side's directory for plugins.",
)
@click.argument("name", metavar="cpu|memory|nic")
def serve(name: str, directory: Path, config_file: Path | None) -> None:
    """Serve an allocator, with its settings from FILE, until SIGTERM."""
    from qrm.service import logs
    from qrm.service.plugin import serve_allocator

    config = read_config(config_file)
    logs.configure(config.log)
    asyncio.run(serve_allocator(config, name, directory))
