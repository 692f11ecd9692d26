"""HTTP: the protocol's limits, the request as it arrived, the response as it is written."""
