"""How lines of callhome's log look where nobody has set up ``logging``: on stderr, each with the
name of who says it.

Several processes write to the terminal of a node. Called by the first code of an actor's process
and by the command line; programs that embed us keep their ``logging`` as it is.
"""

from __future__ import annotations

import logging

_OURS = "callhome"


class _Named(logging.Formatter):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if record.name.partition(".")[0] != _OURS:
            return text
        if not self._name or text.startswith((f"{self._name}: ", f"{self._name} ")):
            return f"{_OURS}: {text}"
        return f"{_OURS}: {self._name}: {text}"


def name_lines(name: str = "") -> None:
    """From now on put ``callhome:``, and ``name`` if the line does not begin with it, before the
    lines of our loggers that Python writes to stderr for want of a handler.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Named(name))
