"""The log: structlog events on standard error."""

from __future__ import annotations

import logging
import sys

import structlog

from qrm.config import LogSection


def configure(section: LogSection) -> None:
    """Apply the log settings; may be called again after a reload."""
    renderers: dict[str, structlog.typing.Processor] = {
        "logfmt": structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
        "json": structlog.processors.JSONRenderer(),
        "console": structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
    }
    tracebacks: list[structlog.typing.Processor] = (
        [] if section.format == "console" else [structlog.processors.format_exc_info]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *tracebacks,
            renderers[section.format],
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[section.level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
