"""callhome: actors that stream. Public names, resolved when they are first used.

A child process pins itself before anything heavy is imported, so importing this package imports
nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actors.client import Client as Client
    from actors.client import WorkerState as WorkerState
    from actors.cluster.launcher import Cluster as Cluster
    from actors.cluster.launcher import connect as connect
    from actors.cluster.spec import ActorSpec as ActorSpec
    from actors.cluster.spec import EngineSpec as EngineSpec
    from actors.cluster.spec import IngressSpec as IngressSpec
    from actors.cluster.spec import NodeSpec as NodeSpec
    from actors.cluster.spec import RouterSpec as RouterSpec
    from actors.config import Settings as Settings
    from actors.engine.api import BidirectionalEngine as BidirectionalEngine
    from actors.engine.api import Engine as Engine
    from actors.engine.api import EngineContext

    Context = EngineContext
    from actors.engine.api import bidirectional as bidirectional
    from actors.errors import CallHomeError as CallHomeError
    from actors.kernel.actor import Actor as Actor
    from actors.kernel.actor import handles as handles
    from actors.kernel.ref import Ref as Ref
    from actors.kernel.requests import RequestStream as RequestStream
    from actors.kernel.responses import DuplexStream as DuplexStream
    from actors.kernel.responses import ResponseStream as ResponseStream
    from actors.kernel.watchful import StreamWarning as StreamWarning
    from actors.messages import BusyAt as BusyAt
    from actors.router.custom import RoutedRequest as RoutedRequest
    from actors.router.custom import WorkerView as WorkerView
    from actors.router.dispatch import DispatchSeat as DispatchSeat
    from actors.router.dispatch import StreamingDispatch as StreamingDispatch
    from transport.shm.frames import Frame as Frame
    from transport.wire.codec import Annotated as Annotated

_HOMES = {
    "Actor": "actors.kernel.actor",
    "ActorSpec": "actors.cluster.spec",
    "Annotated": "transport.wire.codec",
    "BidirectionalEngine": "actors.engine.api",
    "BusyAt": "actors.messages",
    "CallHomeError": "actors.errors",
    "Client": "actors.client",
    "Cluster": "actors.cluster.launcher",
    "Context": "actors.engine.api:EngineContext",
    "DispatchSeat": "actors.router.dispatch",
    "DuplexStream": "actors.kernel.responses",
    "Engine": "actors.engine.api",
    "EngineSpec": "actors.cluster.spec",
    "Frame": "transport.shm.frames",
    "IngressSpec": "actors.cluster.spec",
    "NodeSpec": "actors.cluster.spec",
    "Ref": "actors.kernel.ref",
    "RequestStream": "actors.kernel.requests",
    "ResponseStream": "actors.kernel.responses",
    "RoutedRequest": "actors.router.custom",
    "RouterSpec": "actors.cluster.spec",
    "Settings": "actors.config",
    "StreamWarning": "actors.kernel.watchful",
    "StreamingDispatch": "actors.router.dispatch",
    "WorkerState": "actors.client",
    "WorkerView": "actors.router.custom",
    "bidirectional": "actors.engine.api",
    "connect": "actors.cluster.launcher",
    "handles": "actors.kernel.actor",
}

__all__ = sorted(_HOMES)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'actors' has no attribute {name!r}")
    module, _, attribute = home.partition(":")
    found = getattr(importlib.import_module(module), attribute or name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
