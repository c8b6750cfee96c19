"""Model files that this worker fetches for a load, and gives to other workers."""
