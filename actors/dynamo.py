"""The variables of Dynamo's environment (``DYN_…``) that name something we have.

``Settings.load`` asks here, below ``CALLHOME_…`` and above a TOML file, so that a node joins a
fleet with the environment that its neighbours have. What names nothing of ours is left alone.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple

from transport.callhome.address import check_hostport
from transport.errors import SpecError

log = logging.getLogger("callhome.config")

#: Our setting for each of their variables.
SETTINGS: Final = {
    "DYN_TCP_MAX_MESSAGE_SIZE": "max_message",
    "DYN_TCP_REQUEST_TIMEOUT": "ack_timeout",
    "DYN_TCP_CONNECT_TIMEOUT": "connect_timeout",
    "DYN_TCP_POOL_SIZE": "request_pool",
    "DYN_TCP_CHANNEL_BUFFER": "request_depth",
    "DYN_TCP_GLOBAL_CONNECT_LIMIT": "request_connects",
    "DYN_TCP_HOST_IDLE_TTL_SECS": "host_idle",
    "DYN_TCP_WORKER_POOL_SIZE": "ingress_pool",
    "DYN_TCP_WORK_QUEUE_SIZE": "ingress_queue",
    "DYN_TCP_RESPONSE_STREAM_HOST": "call_home_host",
    "DYN_TCP_RESPONSE_STREAM_PORT": "call_home_port",
    "DYN_RUNTIME_INHIBITED_DURATION_SECS": "quarantine",
    "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "drain_grace",
    "DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS": "drain_limit",
    "DYN_CANARY_WAIT_TIME": "canary_wait",
    "ETCD_LEASE_TTL": "lease_ttl",
}
#: Where Dynamo's fleets meet that cannot be read here, and why.
_BACKENDS: Final = {
    "kubernetes": "reads Kubernetes' own lists, which is not done here",
    "mem": "leaves nothing outside of one process",
    "nats": "is no backend of Dynamo 1.6, and not read here",
}
_ENDPOINTS: Final = "ETCD_ENDPOINTS"
_ETCD_TLS: Final = ("ETCD_AUTH_CA", "ETCD_AUTH_CLIENT_CERT", "ETCD_AUTH_CLIENT_KEY")
_NO_TLS: Final = "etcd is not reached by TLS here yet"

_CODEC: Final = "DYN_REQUEST_PLANE_CODEC"
_CODECS: Final = ("msgpack", "json")


class Given(NamedTuple):
    """What a variable says: its own name, for error texts, and its text."""

    variable: str
    text: str


def settings_of(environ: Mapping[str, str]) -> dict[str, Given]:
    """Our settings as far as ``environ`` gives them in Dynamo's names.

    Raises SpecError for a plane that we do not speak: to go on over another one would look like a
    worker that never answers.
    """
    _check_planes(environ)
    found = {
        setting: Given(variable, environ[variable])
        for variable, setting in SETTINGS.items()
        if environ.get(variable)
    }
    if codec := environ.get(_CODEC):
        if codec not in _CODECS:
            _warn_once(f"{_CODEC}={codec[:80]!r} is no codec (msgpack or json); msgpack is used")
            codec = "msgpack"
        found["codec"] = Given(_CODEC, codec)
    return found


def _check_planes(environ: Mapping[str, str]) -> None:
    requests = environ.get("DYN_REQUEST_PLANE", "")
    if requests == "nats":
        raise SpecError(
            "DYN_REQUEST_PLANE: 'nats' is not spoken here; set it to tcp on all nodes, or unset it"
        )
    if requests not in ("", "tcp"):
        _warn_once(f"DYN_REQUEST_PLANE={requests[:80]!r} is no request plane; tcp is used")
    responses = environ.get("DYN_RESPONSE_PLANE")
    if responses is not None and responses != "tcp":
        raise SpecError(
            f"DYN_RESPONSE_PLANE: {responses[:80]!r} is not spoken here; "
            "set it to tcp on all nodes, or unset it"
        )


@functools.cache
def _warn_once(text: str) -> None:
    log.warning("%s", text)


def listen_of(environ: Mapping[str, str]) -> str:
    """``host:port`` of an ingress whose spec gives none: ``DYN_TCP_RPC_HOST`` and ``_PORT``, else
    any port of this machine alone.
    """
    host = environ.get("DYN_TCP_RPC_HOST") or "127.0.0.1"
    port = environ.get("DYN_TCP_RPC_PORT") or "0"
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def device_ratio_of(environ: Mapping[str, str]) -> float:
    """What one accelerator is worth in CPU workers: ``DYN_ENCODER_CUDA_TO_CPU_RATIO``, else 8.

    Raises SpecError for what is no number above zero.
    """
    variable = "DYN_ENCODER_CUDA_TO_CPU_RATIO"
    text = environ.get(variable) or "8"
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= 1e9:
        raise SpecError(f"{variable}: {text[:80]!r} is no number above 0; unset it for 8")
    return ratio


def directory_of(environ: Mapping[str, str]) -> str:
    """The folder of a fleet that finds itself by files, or "": the fleet, if any, does not."""
    if environ.get("DYN_DISCOVERY_BACKEND") != "file":
        return ""
    default = f"{environ.get('TMPDIR') or '/tmp'}/dynamo_store_kv"
    return environ.get("DYN_FILE_KV") or default


def etcd_of(environ: Mapping[str, str]) -> str:
    """``etcd://host:port,…`` of a fleet that finds itself by etcd, or "": by Dynamo's own default
    every fleet does, but for us somebody must have said so.

    Another word than ``etcd`` and ``file`` is told once: nobody of that fleet is found. Raises
    SpecError where etcd is to be reached by TLS, and for an endpoint that is no ``host:port``.
    """
    backend = environ.get("DYN_DISCOVERY_BACKEND", "")
    named = environ.get(_ENDPOINTS, "").strip(", ")
    if backend not in ("", "etcd"):
        _tell_backend(backend)
        return ""
    if not (backend or named):
        return ""
    for variable in _ETCD_TLS:
        if environ.get(variable):
            raise SpecError(f"{variable}: {_NO_TLS}; unset it where etcd listens without")
    members = filter(None, map(str.strip, named.split(",")))
    hosts = dict.fromkeys(map(_member, members)) or ("127.0.0.1:2379",)
    return "etcd://" + ",".join(hosts)


def _member(text: str) -> str:
    """``host:port`` of one of etcd's endpoints: Dynamo takes a URL, too, and leaves its path."""
    scheme, found, rest = text.rpartition("://")
    if scheme.lower() == "https":
        raise SpecError(f"{_ENDPOINTS}: {text[:80]!r}: {_NO_TLS}; give http://host:port")
    if found and scheme.lower() not in ("http", "etcd"):
        raise SpecError(f"{_ENDPOINTS}: {text[:80]!r} is not 'host:port' or 'http://host:port'")
    member = rest.partition("/")[0]
    if "@" in member:  # not shown: a password may stand there
        raise SpecError(
            f"{_ENDPOINTS} names a user; give ETCD_AUTH_USERNAME and ETCD_AUTH_PASSWORD instead"
        )
    check_hostport(member, SpecError, _ENDPOINTS)
    return member


def _tell_backend(backend: str) -> None:
    if backend == "file":  # see directory_of
        return
    why = _BACKENDS.get(backend, "is none that is known here")
    _warn_once(
        f"DYN_DISCOVERY_BACKEND={backend[:80]!r} {why}: this node finds nobody by it, and is found "
        "by nobody; use etcd or file there, or give peers, directory or etcd here"
    )
