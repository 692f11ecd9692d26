"""The settings of the quota service, from `BATON_QUOTA_*` variables."""

from dataclasses import dataclass
from pathlib import Path

PREFIX = "BATON_QUOTA_"


@dataclass(frozen=True)
class Settings:
    """The service's settings; each field is one variable."""

    # Address of its gRPC server, host:port; port 0 = any free one.
    listen: str = "127.0.0.1:0"
    # Address of metrics, liveness and readiness, plain HTTP; port 0 = any free one.
    admin_listen: str = "127.0.0.1:0"
    # unix://path, redis://host:port/db, redis+cluster://node:port,node:port,
    # redis+sentinel://sentinel:port,sentinel:port/name/db (the primary called `name`), or with TLS
    # rediss...://...?ssl_ca_certs=/path (and ssl_certfile, ssl_keyfile where Redis asks for them).
    redis_url: str = "redis://127.0.0.1:6379/0"
    # User of Redis; empty = its default user.
    redis_username: str = ""
    # File with the password of Redis, read anew for each connection.
    redis_password_file: Path | None = None
    # File with the password of the Sentinels, read anew for each connection; without it they are
    # shown none, and never that of Redis.
    redis_sentinel_password_file: Path | None = None
    # File of keys and limits, the truth of which Redis has a copy. Without it, declared_file and
    # bootstrap_key_file, the keys are those in Redis.
    registry_file: Path | None = None
    # File of keys and limits that nobody else writes, in the registry's form: what leaves the file
    # ends.
    declared_file: Path | None = None
    # File with a deployment's first key.
    bootstrap_key_file: Path | None = None
    # File with the server secret, by which digests of keys are made; the gateways' own.
    secret_file: Path | None = None
    # What tokens cost; without it everything is free.
    prices_file: Path | None = None
    # Folder of the usage archive, a file for each UTC day; without it nothing is archived.
    usage_dir: Path | None = None
    # Address of the admin API, host:port, for callers with the token in api_token_file; empty =
    # there is none.
    api_listen: str = ""
    # File with the token of the admin API.
    api_token_file: Path | None = None
    # The Secret that is the registry's home, of which registry_file is a mount; empty = the file.
    registry_secret: str = ""
    # Number of usage folders of all replicas. After a loss of Redis, keys with a hard budget are
    # refused until all of them were read.
    num_archives: int = 1
    # Seconds for one call to Redis; a gateway counts by itself while Redis does not answer.
    redis_timeout_s: float = 0.25
    # Connections to Redis at most.
    redis_connections: int = 64
    # Seconds that a reservation lives without a renewal by its gateway; it is the longest that a
    # dead gateway holds a tenant's limits.
    lease_s: float = 30.0
    # Seconds for which a gateway may use what it was told of a key; a revoked key works no longer
    # than that.
    fresh_for_s: float = 5.0
    # Seconds for which a finished request id is remembered, so that a late repeat is not charged
    # again; a day.
    settled_kept_s: float = 86_400.0
    # Seconds between two looks for reservations that have run out.
    reap_interval_s: float = 2.0
    # Seconds between two looks at the files of keys and prices.
    registry_interval_s: float = 1.0
    # Seconds between two writes of finished requests to the archive.
    archive_interval_s: float = 0.5
    # Tenants with counters of their own on the metrics page; the others share one set.
    metered_tenants: int = 200
    # Seconds for which calls may go on after the signal to stop.
    drain_s: float = 2.0

    def __post_init__(self) -> None:
        for name in ("lease_s", "settled_kept_s", "redis_timeout_s", "reap_interval_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")
        if "@" in self.redis_url.partition("?")[0]:
            raise ValueError("redis_url must not hold a password: give it in redis_password_file")
        if self.redis_username and not self.redis_password_file:
            raise ValueError("redis_username needs redis_password_file")
        if self.redis_sentinel_password_file and "+sentinel:" not in self.redis_url:
            raise ValueError("redis_sentinel_password_file is for redis+sentinel:// in redis_url")
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
