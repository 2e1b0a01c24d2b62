"""The one exception that says how far a starting actor came; raised by whoever runs it, read by the
first code of a child (``actors.kernel.child``) and by the launcher for actors in its own process.
"""

from __future__ import annotations


class StageError(Exception):
    """An actor did not come up, or ended with an error.

    ``stage`` is import, constructor, bind, on_start or exit; ``cause`` is what was raised there,
    ``told`` whether a line of the log has told it already.
    """

    def __init__(self, stage: str, cause: BaseException, *, told: bool = False) -> None:
        super().__init__(f"{stage}: {cause}")
        self.stage = stage
        self.cause = cause
        self.told = told
