"""Real Postgres servers, routers and a repairer on one machine, for trying graphd out and for its tests."""
