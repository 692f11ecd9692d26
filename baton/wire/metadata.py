"""Keys of gRPC metadata and HTTP headers that every process reads alike."""

REQUEST_ID = "x-request-id"
# The newest version of the protocol that the caller speaks (protocol.py); absent = the first.
PROTOCOL = "baton-protocol"
# Serialized baton.wire.v1.Failure in the trailing metadata of a failed call or stream.
FAILURE = "baton-failure-bin"
