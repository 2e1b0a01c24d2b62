"""The command line of ``callhome``: commands, options, and help that teaches by examples."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, NoReturn

from actors.cli.probing import add_health

_TOP = """\
Actors in processes: streams through routers, frames in shared memory.

  callhome up examples/cluster.toml --cores 0,1              start a node; Ctrl-C stops it
  callhome ps                                                what runs, and what it carries
  callhome health                                            is it well? (exit code for probes)
  callhome stream demo.shout.generate '{"text": "a b c"}'    one request, many items
  callhome stop                                              stop it from another shell
"""
_CODES = """\
exit codes: 0 done, 1 failed, 2 wrong usage or spec, 128 + N ended by signal N
settings come from CALLHOME_... variables, such as CALLHOME_RUN for the run folder
"""
_UP = """\
Starts the node that a spec describes and stays until Ctrl-C, SIGTERM or `callhome stop`. Ctrl-C
once stops everything in order and leaves no process, socket or memory; twice does so by force.
"""
_UP_END = """\
examples:
  callhome up examples/cluster.toml               a TOML file
  callhome up launch.py                           the NodeSpec that the script calls NODE
  callhome up launch.py:OTHER                     ... or OTHER
  callhome up cluster.toml --cores 0-3            router on core 0, engines spread over 1 to 3
  callhome up cluster.toml --cluster blue         a second cluster beside the first
  callhome up b.toml --listen 10.0.0.8:7400       other nodes may call its engines
  callhome up a.toml --peer 10.0.0.8:7400         its router also finds the engines there
  callhome up a.toml --node m1 --join etcd://10.0.0.2:2379      all nodes that join there find
                                                  each other; --namespace keeps fleets apart

exit codes: 0 after a clean stop by SIGTERM, SIGHUP or `callhome stop`, 130 by Ctrl-C; 128 + N when
signal N came before all of it was ready, or for the second time; 1 when the node did not start or
died by itself, the code of an essential actor where that was why; 2 wrong spec
"""
_PS = """\
Lists the actors of every running node: pid, cores, streams in flight / capacity, queued, restarts,
resident memory (shared memory that it has touched included) and endpoint. Below stands a line for
each peer that a router cannot see, and why, and for each worker that it leaves alone after a fault.
"""
_PS_END = """\
examples:
  callhome ps
  callhome ps --cluster blue --counters           requests, items, bytes, errors by kind, ...
  callhome ps --memory                            segments, frames and who holds them
  callhome ps --json | jq '.actors[].pid'         one JSON object a node
"""
_CALL = "Sends one request and prints the one answer as a line of JSON."
_STREAM = """\
Sends one request and prints each item as a line of JSON as it comes. Ctrl-C once asks the engine to
finish (what it still yields is printed), twice drops the stream.
"""
_CHAT = """\
Sends each line of stdin as one item (text) to a bidirectional endpoint and prints the answers as
they come: text as it is, other values as JSON. The end of stdin (Ctrl-D) is our last word and no
cancel. Ctrl-C once asks the engine to finish, twice drops the stream.
"""
_CHAT_END = """\
examples:
  callhome chat demo.chat.converse
  callhome chat demo.chat.converse < lines.txt
  seq 3 | callhome chat demo.total.sum --json     each line is JSON: here a number
"""
_ITEMS = """
JSON has no bytes, arrays or frames: they are shown as text such as "<bytes 3: 616263>" and
"<Frame uint8 1080x1920x3>"; dates, UUIDs and Decimals are shown as their text, NaN as "NaN".
"""
_BUSY = """\
Sets from when on a worker gets no new streams, for all endpoints of a node's routers and at once;
without options shows what holds, and each worker with what it carries. It lasts as long as the
router: a spec says what holds after its restart (busy_streams, busy_fraction).
"""
_BUSY_END = """\
examples:
  callhome busy                                   what holds, and who is busy
  callhome busy --streams 8                       busy from 8 streams on
  callhome busy --fraction 0.5 --router router    ... or from half of its capacity on
  callhome busy --streams none --fraction none    never
"""
_STOP = """\
Asks nodes to stop in order and waits for their end; after --grace seconds it ends them by force.
"""
_STOP_END = """\
examples:
  callhome stop                                   the only cluster that runs
  callhome stop --cluster blue --grace 60
"""
_DRAIN = """\
Has a node, or one of its engines, take nothing new and end what it has. First its records are
withdrawn, here, in etcd and in directories; who has read them still is served for a moment (setting
drain_grace). Then streams under way may go on up to the limit, and what has not ended by then ends
with an error that says so. It stays drained: `callhome restart` has it serve again, `callhome stop`
ends it. Asked once more meanwhile, the limit only gets shorter. Ctrl-C ends this command, not the
drain.
"""
_DRAIN_END = """\
examples:
  callhome drain                                  the only node that runs
  callhome drain a --limit 60                     node a; its streams have a minute
  callhome drain demo.shout.generate-0            one engine; callhome ps has the names
  callhome drain 2040a22a83b43905                 ... by its instance id, decimal or hexadecimal
  callhome drain --json                           each step as a line of JSON

exit codes: 0 all streams have ended, 1 some were ended with an error (how many is told), 2 no such
node, engine or instance
"""
_RESTART = """\
Starts actors anew from the spec: those that are named, or all engines, routers and the ingress of
the nodes of this machine. An engine that is not the only one of its endpoint drains first; one that
is, a router that is and the ingress get a successor beside them before they drain, so no request
fails. Actors of your own are started anew only by name: they keep state, and do not drain. None of
it counts as a crash.
"""
_RESTART_END = """\
examples:
  callhome restart --rolling                      one after the other, node by node
  callhome restart demo.shout.generate-0          this engine; serves again if it was drained
  callhome restart router counter                 these, at once
  callhome restart --rolling --limit 60 --json    a minute for streams; each step as JSON

--rolling goes on when the actor before serves again, is known to all and well; it stops at the
first that does not come up. Ctrl-C: the node finishes the actor that it is at, and stops there.
exit codes: 0 all serve, 1 one did not come up (what was left as it was is told), 2 no such actor
"""
_DOCTOR = """\
Checks what callhome needs of this machine, one line each: ok, warn or FAIL, and what to do about
it. Exit code 1 when a check failed.
"""
_DOCTOR_END = """\
examples:
  callhome doctor
  callhome doctor --fix                           also removes what dead nodes have left
"""


class _Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, as every other error is told."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"callhome: error: {message} (see {self.prog} --help)\n")
        sys.exit(2)


def _seconds(text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 31_536_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; expected seconds, or none")
    return value


def _streams(text: str) -> int | str:
    if text.lower() == "none":
        return "none"
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1 << 30):
        raise _wrong(text, "a whole number above 0, or none")
    return int(text)


def _wrong(text: str, allowed: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{text[:100]!r} is not allowed; expected {allowed}")


def _instance(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and 0 < int(text) < 1 << 64):
        raise _wrong(text, "the id of a worker, as callhome busy shows it")
    return int(text)


def _priority(text: str) -> int:
    return _whole(text, -1_000_000_000, 1_000_000_000)


def _times(text: str) -> int:
    return _whole(text, 0, 1000)


def _whole(text: str, low: int, high: int) -> int:
    try:
        found = int(text)
    except ValueError:
        found = low - 1
    if not low <= found <= high:
        raise _wrong(text, f"a whole number from {low} to {high}")
    return found


def _fraction(text: str) -> float | str:
    if text.lower() == "none":
        return "none"
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e9:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not allowed; expected a part of the capacity, such as 0.5, or none"
        )
    return value


def request(text: str) -> Any:
    """A request in JSON; ``-`` reads it from stdin."""
    if text == "-" and sys.stdin is None:
        raise argparse.ArgumentTypeError("stdin is closed; a request was to be read from it")
    source = sys.stdin.read() if text == "-" else text
    try:
        return json.loads(source)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{source[:80]!r} is no JSON: {error}; text needs its quotes: '\"hello\"'"
        ) from None


def _common(name: str) -> _Parser:
    """The options of several commands."""
    common = _Parser(add_help=False)
    if name == "up":
        common.add_argument("--cluster", metavar="NAME", help="its name (that of the file)")
    elif name != "doctor":
        common.add_argument("--cluster", metavar="NAME", help="the cluster (the only one)")
        common.add_argument("--node", metavar="NAME", help="the node (the only one)")
    common.add_argument("--traceback", action="store_true", help="show where an error comes from")
    return common


def parser() -> argparse.ArgumentParser:
    """The command line; parsed options name their ``module`` and ``command`` (a function there)."""
    shape = argparse.RawDescriptionHelpFormatter
    top = _Parser(prog="callhome", description=_TOP, epilog=_CODES, formatter_class=shape)
    commands = top.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)

    def add(name: str, module: str, brief: str, text: str, end: str) -> argparse.ArgumentParser:
        found = commands.add_parser(
            name, help=brief, description=text, epilog=end, formatter_class=shape,
            parents=[_common(name)],
        )  # fmt: skip
        found.set_defaults(module=module, command=name)
        return found

    up = add("up", "up", "start a node and keep it", _UP, _UP_END)
    up.add_argument("spec", metavar="SPEC", help="FILE.toml, SCRIPT.py or SCRIPT.py:NAME")
    up.add_argument("--cores", metavar="0,1", help="cores to spread the actors over")
    up.add_argument("--listen", metavar="HOST:PORT", help="let other nodes in there (port 0: any)")
    up.add_argument(
        "--peer", metavar="HOST:PORT", action="append", default=[],
        help="find the engines of the node that listens there; may be given again",
    )  # fmt: skip
    up.add_argument("--directory", metavar="PATH", help="folder of records shared by nodes")
    up.add_argument("--node", metavar="NAME", help="the node's name (that of the spec)")
    up.add_argument(
        "--join", metavar="etcd://HOST:PORT,...",
        help="find, and be found by, all nodes that join there",
    )  # fmt: skip
    up.add_argument(
        "--namespace", metavar="NS", help="first word of all endpoints that count there"
    )
    ps = add("ps", "node", "list actors and what they carry", _PS, _PS_END)
    ps.add_argument("--counters", action="store_true", help="what each has done since it started")
    ps.add_argument("--memory", action="store_true", help="who has which shared memory, how long")
    ps.add_argument("--json", action="store_true", help="one line of JSON a node")
    add_health(add, _seconds)
    _add_talk(add)
    busy = add("busy", "busy", "from when on workers get no more", _BUSY, _BUSY_END)
    busy.add_argument("--router", metavar="NAME", help="this router (all of the node)")
    busy.add_argument("--streams", type=_streams, metavar="N", help="streams, or none: no limit")
    busy.add_argument(
        "--fraction", type=_fraction, metavar="X", help="part of its capacity, or none: no limit"
    )
    stop = add("stop", "node", "stop nodes", _STOP, _STOP_END)
    stop.add_argument(
        "--grace", type=_seconds, default=30.0, metavar="SECONDS", help="before force (30)"
    )
    _add_renewal(add)
    doctor = add("doctor", "doctor", "check this machine", _DOCTOR, _DOCTOR_END)
    doctor.add_argument("--fix", action="store_true", help="remove what dead nodes have left")
    return top


def _add_renewal(add: Any) -> None:
    drain = add("drain", "drain", "take nothing new, end what is there", _DRAIN, _DRAIN_END)
    drain.add_argument(
        "target", metavar="TARGET", nargs="?",
        help="a node, an engine or an instance (the only node)",
    )  # fmt: skip
    restart = add("restart", "restart", "start actors anew", _RESTART, _RESTART_END)
    restart.add_argument("actors", metavar="ACTOR", nargs="*", help="its name (all that drain)")
    restart.add_argument("--rolling", action="store_true", help="one after the other")
    for command in (drain, restart):
        command.add_argument(
            "--limit", type=_limit, metavar="SECONDS",
            help="for streams under way (setting drain_limit)",
        )  # fmt: skip
        command.add_argument("--json", action="store_true", help="a line of JSON for each step")


def _limit(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 31_536_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; expected seconds, 0 for none")
    return value


def _add_talk(add: Any) -> None:
    for name, brief, text in (
        ("call", "one request, one answer", _CALL),
        ("stream", "one request, many items", _STREAM),
    ):
        end = (
            f'examples:\n  callhome {name} demo.shout.generate \'{{"text": "hi"}}\'\n'
            f"  callhome {name} demo.shout.generate - < request.json\n"
            f"  callhome {name} demo.shout.generate 1 --connect tcp://10.0.0.8:7400\n{_ITEMS}"
        )
        talk = add(name, "talk", brief, text, end)
        talk.add_argument("endpoint", metavar="ENDPOINT", help="namespace.component.endpoint")
        talk.add_argument(
            "request",
            metavar="JSON",
            type=request,
            nargs="?",
            help="the request (null); - is stdin",
        )
        talk.add_argument(
            "--migration-limit", type=_times, metavar="N",
            help="times to go on at another worker when this one fails",
        )  # fmt: skip
        _add_road(talk)
    chat = add("chat", "talk", "lines in, answers out", _CHAT, _CHAT_END + _ITEMS)
    chat.add_argument("endpoint", metavar="ENDPOINT", help="namespace.component.endpoint")
    chat.add_argument("--json", action="store_true", help="JSON in and JSON out, a line each")
    _add_road(chat)


def _add_road(talk: argparse.ArgumentParser) -> None:
    talk.add_argument("--instance", type=_instance, metavar="ID", help="this worker and no other")
    talk.add_argument(
        "--priority", type=_priority, default=0, metavar="N",
        help="of two that wait at a router, the larger goes first (0)",
    )  # fmt: skip
    talk.add_argument(
        "--connect", metavar="tcp://HOST:PORT",
        help="the node that listens there, in place of one of this machine",
    )  # fmt: skip
    talk.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS", default=argparse.SUPPRESS,
        help="limit for the whole of it, or none (call: setting call_timeout; else none)",
    )  # fmt: skip
