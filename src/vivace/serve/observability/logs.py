"""Logs one line per event on stderr, as text or as JSON.

JSON lines have stable fields and never contain the text of a request. Of an exception they have the
type and the stack, because its message may quote the text.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import traceback
from typing import Any

from vivace.serve.observability.traces import trace_id

FIELDS = "vivace_fields"  # attribute of a log record: its fields in JSON
PLAIN = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_STACK = 12  # innermost frames


def log_to_stderr(log_format: str) -> None:
    """Set up logging. uvicorn's own lines are dropped: they repeat paths and tracebacks.

    With JSON, warnings of Python and of other packages are JSON too.
    """
    is_json = log_format == "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if is_json else logging.Formatter(PLAIN))
    show_events()
    logging.getLogger(None if is_json else "vivace").addHandler(handler)
    logging.captureWarnings(is_json)
    for name in ("uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def show_events(*, is_quiet: bool = False) -> None:
    """Log every event; warnings and errors only if `is_quiet`."""
    logging.getLogger("vivace").setLevel(logging.WARNING if is_quiet else logging.INFO)


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": _time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (current := trace_id()) is not None:
            fields["trace_id"] = current
        fields |= getattr(record, FIELDS, {})
        if record.exc_info and record.exc_info[1] is not None:
            fields |= _describe(record.exc_info[1])
        return json.dumps(fields, ensure_ascii=False)


def _time(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


def _describe(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)[-MAX_STACK:]
    stack = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": type(error).__name__, "stack": stack}
