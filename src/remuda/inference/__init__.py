"""What an inference request is, for all senders and all backends. Data and protocols: the gateway fills
them in, upstreams answer them."""
