"""Discovery of the members of a service: fixed addresses, DNS names, or EndpointSlices."""
