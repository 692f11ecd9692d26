"""The `baton` command: up, down, status, top, roll, keys, trace."""

import os

# Read when grpc is imported. This command only starts other programs, which do not use gRPC's
# support for forks; with it gRPC would print a warning for each.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
