"""Export of spans, metrics and logs by OpenTelemetry's protocol, and the identity they carry."""
