#!/bin/sh
# Becomes the server, so that the process that was started is the one that answers.
here=$(dirname "$0")
cd "$here" || exit 1
PATH="$PWD/bin:$PATH" # An interpreter that came with the backend goes before the machine's.
exec "${PEER_PYTHON:-python3}" -B -m tests.peers.shell_backend.server "$@"
