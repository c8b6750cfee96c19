"""The worker's own HTTP server: probes, logs of its backends, and the door to those that speak HTTP."""
