"""The last hour of the fleet, for charts: in the frontends' memory, and shared over the bus."""
