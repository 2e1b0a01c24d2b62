"""Settings of a node, and the rules by which settings and specs are checked.

A value comes from a keyword, else from the environment (``CALLHOME_WINDOW_ITEMS``, below it what
``actors.dynamo`` knows of ``DYN_…``), else from the ``[settings]`` table of a TOML file, else from
the default here. Whatever is unknown or malformed raises ``SpecError``, which names the key, what
was given and what is allowed.

A *rule* takes a value and the key it stands under and returns the value as it is kept, or raises.
``actors.cluster.spec`` checks its fields by the same rules.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from actors.dynamo import settings_of
from transport.errors import SpecError

Rule: TypeAlias = Callable[[Any, str], Any]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_PREFIX = "CALLHOME_"
#: Variables that begin so belong to the test-suite, to perf and to what marks the processes of a
#: node (``actors.kernel.exits``), and are no settings.
_RESERVED = ("CALLHOME_TEST_", "CALLHOME_PERF_", "CALLHOME_ACTOR")
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB)?")
_HOST = re.compile(r"[A-Za-z0-9_.:%-]{1,253}")
_HOST_PORT = re.compile(
    r"(?:[A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}(?:%\w{1,15})?\]):(\d{1,5})"
)
_UNITS = {None: 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB}


def wrong(key: str, value: object, allowed: str) -> SpecError:
    """The error for a value that a rule refuses; ``allowed`` says what it takes instead."""
    text = repr(value)
    return SpecError(f"{key}: {text[:200]} is not allowed; expected {allowed}")


def nearest(word: str, known: Collection[str]) -> str:
    """``; did you mean 'x'?`` for the nearest known word, or nothing."""
    from difflib import get_close_matches

    found = get_close_matches(word, known, n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def refuse_unknown(given: Collection[str], known: Collection[str], where: str) -> None:
    """Raises SpecError for the first key that is not known, naming the nearest one that is."""
    for key in given:
        if key not in known:
            path = f"{where}.{key}" if where else str(key)
            hint = nearest(str(key), known)
            raise SpecError(f"{path}: unknown key{hint} (allowed: {', '.join(sorted(known))})")


def whole(low: int, high: int) -> Rule:
    """A whole number from ``low`` to ``high``; text is taken for the sake of the environment."""

    def rule(value: Any, key: str) -> int:
        number = value
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d{1,20}", value.strip()):
            number = int(value)
        if type(number) is not int or not low <= number <= high:
            raise wrong(key, value, f"a whole number from {low} to {high}")
        return number

    return rule


def size(low: int, high: int) -> Rule:
    """A number of bytes from ``low`` to ``high``: whole, or text such as ``"16 MiB"``."""

    def rule(value: Any, key: str) -> int:
        number = value
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
            number = int(match[1]) * _UNITS[match[2]]
        if type(number) is not int or not low <= number <= high:
            raise wrong(key, value, f"{low} to {high} bytes, such as 65536 or '64 KiB'")
        return number

    return rule


def seconds(value: Any, key: str) -> float:
    """Seconds above zero, up to a year."""
    number = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
    if type(number) not in (int, float) or not 0 < number <= 31_536_000:
        raise wrong(key, value, "seconds above 0")
    return float(number)


def seconds_or_0(value: Any, key: str) -> float:
    """Seconds up to a year; 0 switches something off."""
    if value in (0, "0") and not isinstance(value, bool):
        return 0.0
    try:
        return seconds(value, key)
    except SpecError:
        raise wrong(key, value, "seconds, 0 for never") from None


def limit(value: Any, key: str) -> float | None:
    """Seconds above zero; None, or the word ``none`` where there is no None, means no limit."""
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    try:
        return seconds(value, key)
    except SpecError:
        raise wrong(key, value, "seconds above 0, or 'none' for no limit") from None


def named(longest: int) -> Rule:
    """A name that can be part of a path, and of a word on a command line."""
    pattern = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{longest - 1}}}")

    def rule(value: Any, key: str) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise wrong(
                key,
                value,
                f"a name of 1 to {longest} letters, digits, '_', '-' and '.', "
                "beginning with a letter, a digit or '_'",
            )
        return value

    return rule


#: Names of clusters and nodes, which are folders, and of actors and clients, which are sockets.
FOLDER_NAME = named(40)
SOCKET_NAME = named(80)


def one_of(*choices: str) -> Rule:
    """One of some words."""

    def rule(value: Any, key: str) -> str:
        if not isinstance(value, str) or value not in choices:
            hint = nearest(value, choices) if isinstance(value, str) else ""
            raise wrong(key, value, " or ".join(map(repr, choices)) + hint)
        return value

    return rule


def flag(value: Any, key: str) -> bool:
    """True or False; ``1``, ``0``, ``true`` and ``false`` for the sake of the environment."""
    words = {"1": True, "true": True, "0": False, "false": False}
    found = words.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise wrong(key, value, "true or false")
    return found


def host(value: Any, key: str) -> str:
    """A host name or address without a port, or "" for none."""
    text = value.strip() if isinstance(value, str) else None
    if text is None or (text and not _HOST.fullmatch(text)):
        raise wrong(key, value, "a host name or address without a port, such as '10.0.0.7'")
    return text


def host_port(value: Any, key: str) -> str:
    """``host:port``, the host of an IPv6 address in brackets; port 0 means any."""
    match = _HOST_PORT.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[1]) > 65_535:
        raise wrong(key, value, "'host:port', such as '10.0.0.7:7400' or '[::1]:7400'")
    text: str = value
    return text


def folder(value: Any, key: str) -> str:
    """The path of a folder, made absolute; it need not exist yet."""
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise wrong(key, value, "the path of a folder")
    path = os.path.abspath(os.path.expanduser(os.fspath(value)))
    if "\0" in path:
        raise wrong(key, value, "the path of a folder")
    return path


def default_run() -> str:
    """``$XDG_RUNTIME_DIR/callhome`` where that can be written, else ``/tmp/callhome-UID``."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and os.path.isdir(base) and os.access(base, os.W_OK | os.X_OK):
        return os.path.join(os.path.abspath(base), "callhome")
    return f"/tmp/callhome-{os.getuid()}"


def _setting(default: Any, rule: Rule) -> Any:
    return field(default=default, metadata={"rule": rule})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one node, its actors and its clients. Sizes in bytes, times in seconds.

    ``Settings(...)`` takes keywords only and asks nobody else; ``Settings.load(...)`` asks the
    environment and a TOML table as well. Raises SpecError.
    """

    #: Folder that holds the folders of all clusters; short, for a socket path has 107 bytes.
    run: str = field(default_factory=default_run, metadata={"rule": folder})
    #: Payload codec of streams that do not name one.
    codec: str = _setting("msgpack", one_of("msgpack", "json"))
    #: Credit of a stream: how far a producer may run ahead of its consumer.
    window_items: int = _setting(256, whole(1, 1 << 20))
    window_bytes: int = _setting(16 * MIB, size(4 * KIB, 64 * GIB))
    #: Bytes and arrays below this size travel inside the message, others in shared memory.
    inline_below: int = _setting(32 * KIB, size(0, 1 * GIB))
    #: Bytes of one encoded request or item, arrays in shared memory not counted.
    payload_limit: int = _setting(256 * MIB, size(64 * KIB, 2 * GIB - 64 * MIB))
    #: Shared memory of one process grows by steps up to a limit.
    arena_step: int = _setting(64 * MIB, size(1 * MIB, 64 * GIB))
    arena_limit: int = _setting(1 * GIB, size(1 * MIB, 1024 * GIB))
    #: Seconds until a segment in which nothing is used goes back to the system (0: never).
    arena_idle: float = _setting(30.0, seconds_or_0)
    #: How other processes of the node get at shared memory: the best of these that works, or one.
    frame_road: str = _setting("auto", one_of("auto", "proc", "socket", "file", "inline"))
    #: What may wait for one peer that does not read.
    outbox_messages: int = _setting(65_536, whole(1, 1 << 24))
    outbox_bytes: int = _setting(256 * MIB, size(1 * MIB, 64 * GIB))
    #: Messages that an actor takes in before it has handled them.
    mailbox: int = _setting(1024, whole(1, 1 << 24))
    mailbox_bytes: int = _setting(64 * MIB, size(64 * KIB, 64 * GIB))
    #: Limits that hold unless a request brings its own.
    connect_timeout: float | None = _setting(5.0, limit)
    first_item_timeout: float | None = _setting(600.0, limit)
    gap_timeout: float | None = _setting(600.0, limit)
    call_timeout: float | None = _setting(600.0, limit)
    #: How long an actor may take to start, and to stop before it is killed.
    start_timeout: float = _setting(10.0, seconds)
    stop_grace: float = _setting(5.0, seconds)
    #: How long streams that are under way may go on when a node or an actor is asked to stop.
    drain_limit: float = _setting(5.0, seconds_or_0)
    #: How long an ingress whose records others read elsewhere goes on taking streams after they
    #: are withdrawn.
    drain_grace: float = _setting(1.0, seconds_or_0)
    #: An actor of the node whose process shows no sign of life for so long counts as frozen
    #: (0: none ever does).
    frozen_after: float = _setting(3.0, seconds_or_0)
    #: An engine that has given no item for so long is sent its canary (0: never), and has so long
    #: to answer.
    canary_wait: float = _setting(10.0, seconds_or_0)
    canary_timeout: float = _setting(3.0, seconds)
    #: Records in etcd live so long without a sign of their node.
    lease_ttl: float = _setting(10.0, seconds)
    #: Restart intensity: one restart more within the period, and the actor stays down.
    max_restarts: int = _setting(5, whole(0, 1_000_000))
    restart_period: float = _setting(30.0, seconds)
    #: Between nodes: until a request is acknowledged, until its worker has dialled in, until its
    #: handler has begun.
    ack_timeout: float = _setting(5.0, seconds)
    dial_in_timeout: float = _setting(5.0, seconds)
    prologue_timeout: float = _setting(30.0, seconds)
    #: One whole request frame, head and payload.
    max_message: int = _setting(32 * MIB, size(4 * KIB, 1 * GIB))
    #: Request connections to one host, requests under way on each, dials at once, and how long a
    #: connection is kept that nobody uses.
    request_pool: int = _setting(4, whole(1, 4096))
    request_depth: int = _setting(1024, whole(1, 1 << 20))
    request_connects: int = _setting(64, whole(1, 65_536))
    host_idle: float = _setting(300.0, seconds)
    #: Streams that an ingress serves at once, and requests that may wait behind them; bytes of all
    #: requests that have not come to their engine yet, one larger request aside.
    ingress_pool: int = _setting(10_000, whole(1, 1 << 20))
    ingress_queue: int = _setting(40_000, whole(0, 1 << 20))
    ingress_queue_bytes: int = _setting(256 * MIB, size(64 * KIB, 64 * GIB))
    #: Times that a request is tried elsewhere which no worker has begun, or whose worker has died
    #: before the first item; times that a stream which broke is continued elsewhere, and bytes of
    #: its items that are kept for that.
    retry_limit: int = _setting(3, whole(0, 1000))
    migration_limit: int = _setting(0, whole(0, 1000))
    migration_bytes: int = _setting(64 * MIB, size(64 * KIB, 64 * GIB))
    #: Seconds that a worker gets no streams after a fault, doubled each time up to the longest (0:
    #: never), and after it has refused one for want of room.
    quarantine: float = _setting(5.0, seconds_or_0)
    quarantine_longest: float = _setting(60.0, seconds)
    overload_lease: float = _setting(1.0, seconds)
    #: Where workers on other nodes call home: by default the address from which they are reached.
    call_home_host: str = _setting("", host)
    call_home_port: int = _setting(0, whole(0, 65_535))
    call_home_advertise: str = _setting("", host)
    #: Refuse frames of others whose checksum is wrong; our own carry none.
    check_frames: bool = _setting(False, flag)

    def __post_init__(self) -> None:
        for name, rule in _rules().items():
            object.__setattr__(self, name, rule(getattr(self, name), f"settings.{name}"))
        if self.arena_limit < self.arena_step:
            raise wrong(
                "settings.arena_limit", self.arena_limit, f"at least arena_step ({self.arena_step})"
            )

    @classmethod
    def load(
        cls,
        table: Mapping[str, Any] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        where: str = "settings",
        **keywords: Any,
    ) -> Settings:
        """Settings from keywords, the environment (our variables before Dynamo's), a TOML table and
        the defaults, in this order.

        Called by the launcher, the command line and ``NodeSpec``. ``where`` is the key path under
        which the table stands, for error texts.
        """
        rules = _rules()
        values: dict[str, Any] = {}
        table = mapping(table if table is not None else {}, where)
        refuse_unknown(table, rules, where)
        for name, value in table.items():
            values[name] = rules[name](value, f"{where}.{name}")
        environ = os.environ if environ is None else environ
        for name, (variable, text) in settings_of(environ).items():
            values[name] = rules[name](text, variable)
        for variable, text in environ.items():
            if variable.startswith(_PREFIX) and not variable.startswith(_RESERVED):
                refuse_unknown([variable], [_PREFIX + name.upper() for name in rules], "")
                name = variable[len(_PREFIX) :].lower()
                values[name] = rules[name](text, variable)
        refuse_unknown(keywords, rules, "settings")
        return cls(**(values | keywords))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Settings:
        """The settings of ``to_dict``: the environment of the reading process is not asked."""
        refuse_unknown(mapping(data, "settings"), _rules(), "settings")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """All settings as JSON values, for a child process."""
        return {name: getattr(self, name) for name in _rules()}


def etcd_members(etcd: str) -> list[str]:
    """The ``host:port`` of each member of ``etcd://host:port,…``; none of ""."""
    return [each for each in etcd.removeprefix("etcd://").split(",") if each]


def mapping(value: Any, key: str) -> dict[str, Any]:
    """A table: a mapping whose keys are text."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise wrong(key, value, "a table")
    return dict(value)


def _rules() -> dict[str, Rule]:
    return {spec.name: spec.metadata["rule"] for spec in fields(Settings)}
