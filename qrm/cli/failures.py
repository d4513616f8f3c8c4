"""What the command says and exits with when something is wrong: never with a traceback for a user's mistake."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import IO, Any

import click

from qrm.cli.output import plain
from qrm.errors import QrmError

INTERRUPTED = 130
"""What a shell makes of a command that SIGINT ended."""


class Failure(click.ClickException):
    """A QrmError for click, which ends the command with exit code 1."""

    def __init__(self, error: QrmError) -> None:
        super().__init__(error.message)
        self.hint = error.hint

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it to standard error."""
        click.echo(plain(f"qrm: {self.message}").plain, file, err=True)
        if self.hint:
            click.echo(plain(f"hint: {self.hint}").plain, file, err=True)


class Commands(click.Group):
    """The group of all commands."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        with _told(ctx):
            return super().invoke(ctx)


@contextlib.contextmanager
def _told(context: click.Context) -> Iterator[None]:
    try:
        yield
    except QrmError as error:
        raise Failure(error) from error
    except KeyboardInterrupt:
        context.exit(INTERRUPTED)
    except click.Abort as abort:
        # click makes the same of Ctrl-C and of the end of the input at a prompt.
        if isinstance(abort.__context__, KeyboardInterrupt):
            context.exit(INTERRUPTED)
        raise
