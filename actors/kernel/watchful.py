"""What callers learn of trouble at the other end of their streams, which go on all the same.

The home of a stream looks at its peer, before Accept at the router that has the Open, four times a
second from the coarse timer. Of an engine on another node the node's ingress tells (``Warned``).
"""

from __future__ import annotations

import inspect
import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors.kernel.verdicts import FINE, ILLNESSES, LOOK, Verdict
from actors.notices import Warned
from transport.bus.address import Address
from transport.errors import LocalProtocolError, RemoteProtocolError

if TYPE_CHECKING:
    from actors.kernel.opened import Opened
    from actors.kernel.runtime import Runtime

log = logging.getLogger("callhome")

THAWED: Final = "thawed"
#: Warnings of one stream that are kept, the newest.
_KEPT: Final = 16
_TEXT: Final = 500
#: Lines of the log that are not written again at once.
_LINES: Final = 256


class StreamWarning(NamedTuple):
    """Something is wrong at the other end of a stream, which goes on.

    ``code``: ``frozen`` (its process is stopped, or shows no sign of life), ``stalled`` (its event
    loop is blocked), ``unready`` (an engine that does not answer its canary) or ``thawed`` (it goes
    on). ``text`` names the actor, its pid and since when; ``since``: seconds that it has been so,
    for ``thawed`` that it had been.
    """

    code: str
    text: str
    since: float


#: What ``on_warning`` takes.
OnWarning = Callable[[StreamWarning], object]


class Trouble(NamedTuple):
    """What is wrong at the other end of one stream now; ``began``: monotonic seconds."""

    code: str
    text: str
    began: float
    #: The node of the engine has told of it.
    far: bool

    def words(self, now: float) -> str:
        """For an error: what it is, and for how long."""
        return f"{self.text}, for {max(0.0, now - self.began):.1f} s"


def check_listener(listener: Any) -> OnWarning:
    """What was given as ``on_warning``. Raises LocalProtocolError unless it can be called."""
    if not callable(listener) or inspect.iscoroutinefunction(listener):
        raise LocalProtocolError(
            f"on_warning is a function of one StreamWarning, called and not awaited; not "
            f"{listener!r}"
        )
    found: OnWarning = listener
    return found


class Watchful:
    """Looks after the streams that one runtime has opened; made by the runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._next = 0.0
        #: What was said in the log, and of whom.
        self._said: dict[str, None] = {}
        runtime.on(Warned, self._warned)

    def check(self, now: float) -> bool:
        """The coarse timer, which goes on for the sake of the streams and not of this."""
        if now >= self._next:
            self._next = now + LOOK
            self._look(now)
        return False

    def _look(self, now: float) -> None:
        verdicts: dict[int, Verdict] = {}
        told: Counter[tuple[Address, Verdict]] = Counter()
        vigil = self._runtime.vigil
        for stream in list(self._runtime.home.streams.values()):
            peer = stream.peer or stream.via
            verdict = verdicts.get(peer.incarnation)
            if verdict is None:
                verdict = verdicts[peer.incarnation] = vigil.of(peer, now)
            trouble = stream.trouble
            if trouble is None:
                if verdict is not FINE:
                    told[peer, verdict] += 1
                    self._begin(stream, _trouble(peer, verdict), now)
            elif trouble.far and peer.incarnation == stream.via.incarnation:
                continue  # whoever has told of it tells of its end
            elif verdict.well:
                self._end(stream, trouble, now)
            elif verdict.since != trouble.began or verdict.code != trouble.code:
                self._begin(stream, _trouble(peer, verdict), now)
        for (peer, verdict), count in told.items():
            log.warning(
                "%s: %s; %d of its streams wait for it",
                self._runtime.address.name, verdict.text(peer), count,
            )  # fmt: skip

    def _warned(self, sender: int, m: Warned) -> None:
        """A router tells of an engine that has not accepted so far, or, for its ingress, of one on
        another node.
        """
        stream = self._runtime.home.streams.get(m.stream)
        if stream is None:
            return
        peer = stream.peer or stream.via
        if sender not in (peer.incarnation, stream.via.incarnation):
            raise RemoteProtocolError(f"a warning of stream {m.stream} from a stranger")
        now, trouble = time.monotonic(), stream.trouble
        if peer.incarnation != stream.via.incarnation and (trouble is None or not trouble.far):
            return  # accepted by an engine of this node, which we look at ourselves
        if m.code == THAWED:
            if trouble is not None and trouble.far:
                self._end(stream, trouble, now)
        elif m.code in ILLNESSES:
            since = m.since if 0 <= m.since < 1e9 else 0.0
            text = " ".join(m.text.split())[:_TEXT] or f"its worker is {m.code}"
            self._log(text)
            self._begin(stream, Trouble(m.code, text, now - since, True), now)

    def _log(self, text: str) -> None:
        """Many streams may hear of the same trouble: it is logged once."""
        if text not in self._said:
            self._said[text] = None
            if len(self._said) > _LINES:
                del self._said[next(iter(self._said))]
            log.warning("%s: %s; its streams there wait for it", self._runtime.address.name, text)

    def _begin(self, stream: Opened, trouble: Trouble, now: float) -> None:
        stream.trouble = trouble
        self._tell(stream, StreamWarning(trouble.code, trouble.words(now), now - trouble.began))

    def _end(self, stream: Opened, trouble: Trouble, now: float) -> None:
        stream.trouble = None
        self._said.pop(trouble.text, None)
        lasted = now - trouble.began
        who = trouble.text.partition(f" is {trouble.code}")[0]
        text = f"{who} goes on, it had been {trouble.code} for {lasted:.1f} s"
        self._tell(stream, StreamWarning(THAWED, text, lasted))

    def _tell(self, stream: Opened, warning: StreamWarning) -> None:
        context = stream.context
        context.warnings = (*context.warnings[1 - _KEPT :], warning)
        if context.when_warned is not None:
            try:
                context.when_warned(warning)
            except Exception as error:
                self._runtime.complain(f"on_warning of a stream of {stream.target}", error)


def _trouble(peer: Address, verdict: Verdict) -> Trouble:
    return Trouble(verdict.code, verdict.text(peer), verdict.since, False)
