"""Keys of gRPC metadata and HTTP headers that every process reads alike."""

PROTOCOL_VERSION = 1

REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"
# Serialized baton.wire.v1.Failure in the trailing metadata of a failed unary call.
FAILURE = "baton-failure-bin"
