"""The folder of one local stack (`.baton`): secret, keys, data, logs, and what runs right now.

Everything in it survives a restart except `state.json`, which exists only while a stack runs.
"""

import fcntl
import json
import os
import secrets
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO

from baton.localstack.refusal import Refusal
from baton.page.fleet_source import Fleet, Service

ENV_VARIABLE = "BATON_HOME"
FOLDER = ".baton"
# The kernel limits a socket path to 107 bytes.
MAX_SOCKET_FOLDER_CHARS = 90


class HomeNotWritable(Refusal):
    """The folder cannot be made or written to; the message is one clear line."""


class AlreadyRunning(Refusal):
    """Another supervisor owns this folder."""


@dataclass(slots=True)
class StackState:
    """A running stack, as `status`, `down` and tests need to know it."""

    supervisor_pid: int
    base_url: str
    ready: bool = False
    services: dict[str, dict[str, str | int | float]] = field(default_factory=dict)
    web_url: str = ""
    # Asked to stop: what is open may finish.
    stopping: bool = False
    # The names that clients may ask for: models, aliases and adapters.
    models: list[str] = field(default_factory=list)

    def fleet(self) -> Fleet:
        """The same as the page and `baton top` take it."""
        services = [
            Service(
                name=name,
                # decode-1 is a decode worker, decode-2-llama is one, too.
                role=name.partition("-")[0],
                metrics_url=str(row.get("metrics_url", "")),
                endpoint=str(row.get("endpoint", "")),
                is_running=bool(row.get("pid")),
                started_unix_s=float(row.get("started_unix_s", 0)),
                num_restarts=int(row.get("num_restarts", 0)),
            )
            for name, row in self.services.items()
        ]
        return Fleet(self.base_url, services, self.ready, self.stopping)

    def endpoints(self) -> dict[str, str]:
        """The address of each process, by name."""
        return {name: str(row["endpoint"]) for name, row in self.services.items()}


class Home:
    """Paths and small files of one local stack.

    It has an attribute for each path that the supervisor or a service is given.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.secret = self.root / "secret"
        # Of quota's admin API, for the web page.
        self.admin_token = self.root / "admin-token"
        self.registry = self.root / "registry.jsonl"
        self.dev_env = self.root / "dev.env"
        self.logs = self.root / "logs"
        self.redis = self.root / "redis"
        self.usage = self.root / "usage"
        self.outbox = self.root / "outbox"
        self.handoff = self.root / "handoff"
        self.workers = self.root / "workers"
        self.adapters = self.root / "adapters"
        self.spans = self.root / "spans.db"
        self._state = self.root / "state.json"

    @classmethod
    def of_environment(cls) -> "Home":
        """`$BATON_HOME`; else the nearest `.baton` here, above, or beside the virtual environment;
        else `.baton` in the current folder, whether it is there or not."""
        if named := os.environ.get(ENV_VARIABLE):
            return cls(Path(named))
        return cls.found() or cls(Path(FOLDER))

    @classmethod
    def found(cls) -> "Home | None":
        """The nearest `.baton` here or above, as git looks for `.git`; else that of the checkout
        which has the virtual environment; None without either."""
        here = Path.cwd()
        for folder in (here, *here.parents, Path(sys.prefix).parent):
            home = cls(folder / FOLDER)
            if home.exists():
                return home
        return None

    def exists(self) -> bool:
        """True for a folder in which a stack of this user has run, or may run."""
        try:
            return self.logs.is_dir() and self.root.stat().st_uid == os.getuid()
        except OSError:
            return False

    def create(self) -> None:
        """Make the folders that services write to; readable by the owner only.

        Raises HomeNotWritable.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            folders = (self.logs, self.redis, self.usage, self.outbox, self.handoff, self.workers)
            for folder in folders:
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise HomeNotWritable(f"{error.filename}: {error.strerror}") from error

    def socket_folder(self) -> Path:
        """The folder of Unix sockets: this one, or a temporary one when this path is too long."""
        if len(str(self.root)) <= MAX_SOCKET_FOLDER_CHARS:
            return self.root
        name = f"baton-{os.getuid()}-{sha256(str(self.root).encode()).hexdigest()[:12]}"
        folder = Path(tempfile.gettempdir()) / name
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{folder} belongs to another user")
        return folder

    def lock(self) -> IO[str]:
        """Own this folder until the returned file is closed. Raises AlreadyRunning."""
        file = self._try_lock()
        if file is None:
            state = self.read_state()
            pid = f" (pid {state.supervisor_pid})" if state else ""
            raise AlreadyRunning(f"a stack already runs in {self.root}{pid}")
        return file

    def _try_lock(self) -> IO[str] | None:
        file = (self.root / "lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def fleet(self) -> Fleet | None:
        """The running stack as a fleet, or None."""
        state = self.read_state()
        return state.fleet() if state else None

    def read_state(self) -> StackState | None:
        """The running stack, or None. A file left by a killed supervisor counts as none."""
        try:
            state = StackState(**json.loads(self._state.read_text()))
        except (OSError, ValueError, TypeError):
            return None
        return state if self._is_owned() else None

    def _is_owned(self) -> bool:
        """True while a supervisor holds the lock. Its pid alone may be another process's by now."""
        file = self._try_lock()
        if file is None:
            return True
        file.close()
        return False

    def write_state(self, state: StackState | None) -> None:
        """Replace the state file at once, or remove it (None)."""
        if state is None:
            self._state.unlink(missing_ok=True)
            return
        fresh = self._state.with_suffix(".tmp")
        fresh.write_text(json.dumps(asdict(state), indent=1))
        fresh.replace(self._state)

    def read_dev_env(self) -> dict[str, str]:
        """NAME=value lines of dev.env; empty when there is no such file."""
        try:
            lines = self.dev_env.read_text().splitlines()
        except OSError:
            return {}
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def write_dev_env(self, values: dict[str, str]) -> None:
        """Replace dev.env; it holds a key, so only the owner may read it."""
        fresh = self.dev_env.with_suffix(f".{secrets.token_hex(4)}")
        text = "".join(f"{name}={value}\n" for name, value in values.items())
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        fresh.replace(self.dev_env)
