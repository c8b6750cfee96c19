"""Which replica answers. All is decided from memory: microseconds matter here, and a request for a loaded
model is answered while the store and the bus are down."""
