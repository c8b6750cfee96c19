"""llama.cpp's own HTTP server as a program: what many people run, and nothing of ours."""

import argparse
import signal

import xllamacpp  # type: ignore[import-untyped]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--context", type=int, default=256)
    given = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.hostnames, params.port = ["127.0.0.1"], given.port
    params.model.path, params.n_ctx = given.model, given.context
    params.cpuparams.n_threads = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main()
