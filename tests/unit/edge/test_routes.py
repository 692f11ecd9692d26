from services.edge.routes import routes


def test_a_file_may_be_larger_than_other_bodies() -> None:
    """The first route that matches is taken."""
    made = routes(max_body_bytes=100, max_file_bytes=1_000_000).virtual_hosts[0].routes
    limits = [
        (route.match.path or route.match.prefix, [h.range_match.start for h in route.match.headers])
        for route in made[:3]
    ]
    assert limits == [("/v1/files", [1_000_001 + 64 * 1024]), ("/v1/files", []), ("/", [101])]
    assert made[0].direct_response.status == made[2].direct_response.status == 413
    assert made[1].route.cluster
