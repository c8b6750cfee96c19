"""What an inference request is, whoever sent it and whoever answers it. Data and protocols: the gateway fills
them in, upstreams answer them."""
