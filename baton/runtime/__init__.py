"""The parts that every process needs: settings, logs, metrics, gRPC, TLS. No domain words."""
