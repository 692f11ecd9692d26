"""Where the members of a service are: fixed addresses, DNS names, or EndpointSlices."""
