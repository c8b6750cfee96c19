"""Models that people name and the fleet fetches: their files come to the frontends, are checked, and become a
configured model; and how they go again. Each is an operation, carried out by one frontend at a time."""
