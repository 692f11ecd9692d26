"""Makes `api-key` and `server-secret` in a folder, unless they are there: `make_keys.py FOLDER`.

Standard library only; runs once in the quota service's image. What it wrote is never written again,
for a new secret would invalidate every key.
"""

import os
import secrets
import sys
from pathlib import Path


def make(name: str) -> str:
    """As services/quota/bootstrap_key.py and baton/wire/key_registry.py read them."""
    return secrets.token_hex(32) if name == "server-secret" else f"bt-{secrets.token_urlsafe(32)}"


def main() -> None:
    folder = Path(sys.argv[1])
    for name in ("server-secret", "api-key"):
        # Linked when it is complete, so that an existing file is always whole.
        new = folder / f".{name}.{os.getpid()}"
        new.touch(mode=0o600)
        new.write_text(f"{make(name)}\n")
        try:
            (folder / name).hardlink_to(new)
        except FileExistsError:
            pass
        finally:
            new.unlink()


if __name__ == "__main__":
    main()
