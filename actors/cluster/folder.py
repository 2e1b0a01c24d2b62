"""The run folder of a node: who may have it, what stands in it, how others find it.

Layout: ``<root>/<cluster>/<node>/``, mode 0700, with the sockets of the node's actors and clients
and

    lock        flock'd by the node for its whole life; its text is the pid of whoever claimed it
    children    which processes the node has started (``actors.cluster.roll``)
    node.json   who the node is (``NodeInfo``); 0600, replaced atomically, there once the node
    answers

The launcher claims the folder and hands the locked descriptor to the node process, so a second node
of the same name is refused before anything is started. The kernel drops the lock with the last
process that holds it: a lock that can be had belongs to nobody, whatever files say.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from actors.config import FOLDER_NAME
from actors.errors import NameTaken, SpecError
from actors.kernel.descriptors import raised
from actors.kernel.peers import alive
from actors.kernel.space import own_space, whose
from transport.bus.address import Address

#: The files in a run folder that every node has.
LOCK = "lock"
INFO = "node.json"
#: Bytes of the claim in which its maker's pid stands, and of what may stand behind them.
_PID_ROOM = 64
_WORD = 65_536
#: A folder may vanish between our mkdir and our open when its last node is just leaving.
_ATTEMPTS = 20
_PAUSE = 0.005


@dataclass(frozen=True)
class NodeInfo:
    """What ``node.json`` says; ``children`` are the addresses of the processes it had started.

    ``listen`` is the ``host:port`` at which other nodes reach it, "" when it has no ingress;
    ``space`` is the PID namespace that the addresses are of (see ``actors.kernel.space``).
    """

    cluster: str
    node: str
    folder: str
    address: Address
    children: tuple[Address, ...] = ()
    listen: str = ""
    space: int = 0

    @property
    def near(self) -> bool:
        """Its pids mean something to us: it runs in our PID namespace."""
        return self.space in (0, own_space())

    @property
    def alive(self) -> bool:
        """The node's process still runs (a zombie does not)."""
        return alive(self.address) if self.near else locked(self.folder)


def node_folder(root: str, cluster: str, node: str) -> str:
    """Path of a node's run folder. Raises SpecError for names that cannot stand in a path."""
    return os.path.join(
        os.path.abspath(root), FOLDER_NAME(cluster, "cluster"), FOLDER_NAME(node, "node")
    )


def _private(path: str) -> None:
    """Make a folder that only we can enter. Raises SpecError when somebody else could."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise SpecError(
            f"run folder {path!r} is not a folder of this user; "
            "remove it, or set CALLHOME_RUN to another"
        )
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)


def _trusted(root: str) -> None:
    """Raises SpecError when the run folder belongs to somebody who could exchange what is in it."""
    if os.stat(root).st_uid not in (os.geteuid(), 0):
        raise SpecError(
            f"run folder {root!r} belongs to another user; set CALLHOME_RUN to a folder of your own"
        )


class Claim:
    """The right to run a node in ``folder``, as long as the locked descriptor ``fd`` is open
    somewhere.

    Made by the launcher, which hands ``fd`` to the node process and closes its own copy.
    """

    def __init__(self, root: str, cluster: str, node: str) -> None:
        """Raises NameTaken if another node lives there, SpecError if the folder cannot be ours."""
        self.folder = node_folder(root, cluster, node)
        self.fd = -1
        try:
            os.makedirs(root, 0o700, exist_ok=True)
            _trusted(root)
        except OSError as error:
            raise self._cannot(error) from error
        for _ in range(_ATTEMPTS):
            try:
                self._make()
                self.fd = try_lock(self.folder, create=True)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise self._cannot(error) from error
            if self.fd >= 0:
                os.ftruncate(self.fd, 0)
                os.write(self.fd, str(os.getpid()).encode())
                return
            info = read_info(self.folder)
            if info is not None and info.alive:
                break
            time.sleep(_PAUSE)  # a node that is just leaving, or a sweep that is just looking
        raise NameTaken(self._taken(cluster, node))

    def _cannot(self, error: OSError) -> SpecError:
        return SpecError(
            f"run folder {self.folder!r} cannot be made: {error}; set CALLHOME_RUN to another place"
        )

    def _make(self) -> None:
        _private(os.path.dirname(self.folder))
        _private(self.folder)

    def _taken(self, cluster: str, node: str) -> str:
        info = read_info(self.folder)
        if info is not None and info.alive:
            who = f"is running (pid {info.address.pid})"
        else:
            who = f"is starting or stopping (pid {claimer(self.folder) or 'unknown'})"
        return (
            f"node {node!r} of cluster {cluster!r} {who}; choose another name, "
            f"or stop it first (callhome stop --cluster {cluster})"
        )

    def close(self) -> None:
        """Drop our copy of the descriptor; the lock stays with a process that inherited it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def claimer(folder: str) -> str:
    """The pid of the launcher that claimed the folder; "" where nobody has."""
    try:
        return Path(folder, LOCK).read_text().partition("\0")[0]
    except OSError:
        return ""


def try_lock(folder: str, *, create: bool = False) -> int:
    """The descriptor of the folder's lock, held until it is closed; -1 while somebody else holds
    it.

    Raises FileNotFoundError when there is no folder, or (without ``create``) no lock file.
    """
    path = os.path.join(folder, LOCK)
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    fd = raised(os.open(path, flags, 0o600))  # a child inherits it under this number
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_ino != os.stat(path).st_ino:
            raise FileNotFoundError(path)  # we locked a file that had just been removed
    except BlockingIOError:
        os.close(fd)
        return -1
    except BaseException:
        os.close(fd)
        raise
    return fd


def leave_word(fd: int, killed: list[str]) -> None:
    """Write into the claim of a node that ends whom it had to kill, for whoever waits for its end.

    ``fd`` is the claim's descriptor. Never raises: a full disk must not keep a node from ending.
    """
    with contextlib.suppress(OSError):
        while len(text := json.dumps(killed).encode()) > _WORD:
            killed = killed[: len(killed) // 2]  # a part of the list, and not of its text
        os.pwrite(fd, text, _PID_ROOM)


def open_word(folder: str) -> int:
    """A descriptor from which ``read_word`` reads once the node has ended; -1 where there is no
    claim. The caller closes it.
    """
    try:
        return os.open(os.path.join(folder, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1


def read_word(fd: int) -> list[str]:
    """Whom a node that has ended had to kill."""
    try:
        told = json.loads(os.pread(fd, _WORD, _PID_ROOM) or b"[]")
    except (OSError, ValueError):
        return []
    return [str(each) for each in told] if isinstance(told, list) else []


def locked(folder: str) -> bool:
    """Whether a process holds the folder's lock, in whatever PID namespace it may be.

    Looks with a shared lock, for a moment, so that others who look see no owner in us.
    """
    try:
        fd = os.open(os.path.join(folder, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def write_info(info: NodeInfo) -> None:
    """Put ``info`` into its folder in one step, readable by its owner only."""
    path = os.path.join(info.folder, INFO)
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(asdict(info), file)
    os.replace(path + ".new", path)


def read_info(folder: str) -> NodeInfo | None:
    """What the folder's ``node.json`` says; None when there is none or it cannot be read."""
    try:
        data = json.loads(Path(folder, INFO).read_text())
        return NodeInfo(
            cluster=str(data["cluster"]),
            node=str(data["node"]),
            folder=folder,
            address=_address(data["address"]),
            children=tuple(_address(each) for each in data["children"]),
            listen=str(data.get("listen", "")),
            space=int(data.get("space", 0)),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _address(fields: list[object]) -> Address:
    name, *numbers = fields
    if not all(isinstance(each, int) for each in numbers):
        raise TypeError("not an address")
    return Address(str(name), *numbers)  # type: ignore[arg-type]


def remove_folder(folder: str) -> None:
    """Delete a node's folder, and its cluster's when that was the last node. Never raises."""
    for name in _listdir(folder):
        if name != LOCK:  # that goes last: without it nobody would sweep up what is left
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(folder))


def remove_empty(folder: str) -> None:
    """Delete the folder of a node that was killed as it deleted it, and its cluster's, which may
    be all that is left. Never raises.

    Whoever claims the name meanwhile makes it again.
    """
    for each in (folder, os.path.dirname(folder)):
        with contextlib.suppress(OSError):
            os.rmdir(each)


def folders(root: str) -> list[str]:
    """All node folders below ``root``, sorted."""
    found = []
    for cluster in sorted(_listdir(root)):
        for node in sorted(_listdir(os.path.join(root, cluster))):
            folder = os.path.join(os.path.abspath(root), cluster, node)
            if os.path.exists(os.path.join(folder, LOCK)):
                found.append(folder)
    return found


def _listdir(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def barred(root: str) -> str:
    """What keeps us from looking for nodes below ``root``, with the path and both users; "" if
    nothing does.
    """
    paths = [root]
    for cluster in sorted(_listdir(root)):
        path = os.path.join(root, cluster)
        paths += [path, *(os.path.join(path, node) for node in sorted(_listdir(path)))]
    for path in paths:
        if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
            return whose(path)
    return ""


def live_nodes(root: str) -> list[NodeInfo]:
    """Every node below ``root`` whose process runs and answers."""
    infos = (read_info(folder) for folder in folders(root))
    return [info for info in infos if info is not None and info.alive]
