"""The errors that qrm tells people about: one tree, each with what is wrong and what to do about it."""

from __future__ import annotations


class QrmError(Exception):
    """Base of everything that is reported to a person.

    Args:
        message: What is wrong, naming the field and the value.
        hint: What to do about it; shown after the message.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ParseError(QrmError):
    """A text that is not in the format it should be in; the message quotes it."""


class ConfigError(QrmError):
    """The configuration file or one of its values is not usable."""


class BadRequest(QrmError):
    """A pod asks in a way that cannot be understood; the message names the annotation and what is allowed."""


class DoesNotFit(QrmError):
    """A request that is understood but for which the node has no room now; the message carries the numbers."""


class LedgerError(QrmError):
    """The durable record could not be read or written."""


class RuntimeUnreachable(QrmError):
    """The container runtime did not answer."""
