"""The web console as it was built from `ui/`: what frontends serve. It speaks the public API alone."""
