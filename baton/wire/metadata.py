"""Keys of gRPC metadata and HTTP headers that every process reads alike."""

REQUEST_ID = "x-request-id"
TRACEPARENT = "traceparent"
# Serialized baton.wire.v1.Failure in the trailing metadata of a failed unary call.
FAILURE = "baton-failure-bin"
