"""What holds for every test here."""

import os

# As the command that starts services sets it: read when grpc is imported. What a test starts is
# another program, into whose output gRPC's own care for forks would write.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
