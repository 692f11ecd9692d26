"""The settings of the quota service, from `BATON_QUOTA_*` variables."""

from dataclasses import dataclass
from pathlib import Path

PREFIX = "BATON_QUOTA_"


@dataclass(frozen=True)
class Settings:
    """The service's settings; each field is one variable.

    `redis_url` is unix://path, redis://host:port/db, redis+cluster://node:port,node:port,
    redis+sentinel://sentinel:port,sentinel:port/name/db (the primary called `name`), or with TLS
    rediss...://...?ssl_ca_certs=/path (and ssl_certfile, ssl_keyfile where Redis asks for them).
    The password comes from `redis_password_file`.

    Without `registry_file`, `declared_file` and `bootstrap_key_file`, the keys are those in Redis;
    without `usage_dir`, nothing is archived.
    """

    listen: str = "127.0.0.1:0"
    admin_listen: str = "127.0.0.1:0"
    redis_url: str = "redis://127.0.0.1:6379/0"
    redis_username: str = ""
    redis_password_file: Path | None = None
    registry_file: Path | None = None
    # Keys and limits that nobody else writes, in the registry's form: what leaves the file ends.
    declared_file: Path | None = None
    # A deployment's first key, and the secret that its digest is made with.
    bootstrap_key_file: Path | None = None
    secret_file: Path | None = None
    # What tokens cost; without it everything is free.
    prices_file: Path | None = None
    usage_dir: Path | None = None
    # The admin API (host:port), for callers with the token in the file; empty = there is none.
    api_listen: str = ""
    api_token_file: Path | None = None
    # The Secret that is the registry's home, of which registry_file is a mount; empty = the file.
    registry_secret: str = ""
    # The usage folders of all replicas. After a loss of Redis, keys with a hard budget are refused
    # until all of them were read.
    num_archives: int = 1
    redis_timeout_s: float = 0.25
    redis_connections: int = 64
    lease_s: float = 30.0
    fresh_for_s: float = 5.0
    # How long a finished request id is remembered, so that a late repeat is not charged again.
    settled_kept_s: float = 86_400.0
    reap_interval_s: float = 2.0
    registry_interval_s: float = 1.0
    archive_interval_s: float = 0.5
    # Tenants with counters of their own on the metrics page; the others share one set.
    metered_tenants: int = 200
    drain_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("lease_s", "settled_kept_s", "redis_timeout_s", "reap_interval_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if "@" in self.redis_url.partition("?")[0]:
            raise ValueError("redis_url must not hold a password: give it in redis_password_file")
        if self.redis_username and not self.redis_password_file:
            raise ValueError("redis_username needs redis_password_file")
        if self.num_archives < 1:
            raise ValueError("num_archives must be at least 1")
        if self.bootstrap_key_file and not self.secret_file:
            raise ValueError("bootstrap_key_file needs secret_file")
        if bool(self.api_listen) != bool(self.api_token_file):
            raise ValueError("api_listen and api_token_file go together")
        if self.api_listen and not (self.registry_file and self.secret_file):
            raise ValueError("api_listen needs registry_file and secret_file")
        if self.redis_connections < 1:
            raise ValueError("redis_connections must be at least 1")
        if self.metered_tenants < 0:
            raise ValueError("metered_tenants must not be negative")
