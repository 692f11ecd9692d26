"""The `baton` command: up, down, status, keys, trace."""

import os

# Read when grpc is imported. Whatever this command starts is another program: gRPC's own care for
# forks has nothing to do there, and says so on the terminal each time.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
