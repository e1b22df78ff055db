"""The log of a program: one JSON object a line, on stderr, whoever writes it."""

import logging
import sys
from typing import Any

import msgspec
import structlog
from structlog.typing import Processor

# Libraries say at length what a stranger did wrong. We count that and answer it; only their own trouble is worth a line.
_QUIET = ("uvicorn.error", "websockets", "asyncio", "httpx2", "httpcore2")


def configure(level: str, handler: logging.Handler | None = None) -> None:
    """Send everything that is logged from now on, by us and by libraries, to stderr as JSON, or to this handler."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = handler or logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)


def set_level(level: str) -> None:
    """Log this much from now on."""
    logging.getLogger().setLevel(level.upper())


def _render(logger: Any, name: str, event: Any) -> str:
    first = {key: event.pop(key) for key in ("timestamp", "level", "logger", "event") if key in event}
    return msgspec.json.encode(first | dict(event), enc_hook=str).decode()
