"""What goes wrong with a plugin, apart from a request that does not fit."""

from __future__ import annotations

from qrm.errors import QrmError


class PluginError(QrmError):
    """A plugin answered with something that cannot be used; the message names the plugin and what it said."""


class PluginUnavailable(QrmError):
    """A plugin did not answer, or not in time; whether it did what it was asked to is not known."""


class PluginRefused(PluginError):
    """A plugin answered a call with an error of its own."""

    def __init__(self, message: str, *, text: str, contradiction: bool = False, broken: bool = False) -> None:
        super().__init__(message)
        self.text = text
        """The plugin's own words."""
        self.contradiction = contradiction
        """It found the request wrong in itself (INVALID_ARGUMENT)."""
        self.broken = broken
        """It did not judge the request at all: it lacks the method, or failed (UNIMPLEMENTED, INTERNAL)."""
