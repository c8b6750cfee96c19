"""Every bound of the built-in backends, named with its unit."""

MESSAGE_BYTES_MAX = 50 << 20  # Of one gRPC message, either way: what LocalAI's peers use.
DRAIN_S = 5.0  # Calls in flight get this long when a backend is told to stop.
FAILED_DRAIN_S = 1.0  # And so long when it has failed: all that is left to send them is an error.
CLOSE_S = 3.0  # Patience with an engine that lets go of its model.
EXIT_S = 12.0  # From the signal to the end, whatever hangs: sooner than the 15 s after which workers kill.
PARENT_WATCH_EVERY_S = 2.0
