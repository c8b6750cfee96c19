#!/bin/sh
# Clones the last commit to a temporary folder and runs a command there (./remuda --version unless given), as on a
# machine where nothing was set up: an empty home, only the system's programs, none of the caller's variables but
# those that say how packages are reached.
set -eu
repo=$(dirname -- "$(dirname -- "$(readlink -f -- "$0")")")
[ $# -gt 0 ] || set -- ./remuda --version

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
git clone --quiet "$repo" "$place/clone"
mkdir "$place/home"

for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z_0-9]*\)=.*/\1/p'); do
    case $name in
        PIP_* | UV_* | SSL_CERT_* | *_proxy | *_PROXY) eval "set -- \"$name=\$$name\" \"\$@\"" ;;
    esac
done
cd "$place/clone"
env -i HOME="$place/home" PATH=/usr/bin:/bin "$@"
