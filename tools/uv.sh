# Finds uv, or brings it. Sourced by ./remuda and ./test, which set `repo` to the root of the clone.
# Leaves uv's path in `uv`; prints nothing unless there is something to do.

say() { printf 'remuda: %s\n' "$*" >&2; }

stop() {
    say "$*"
    exit 1
}

find_python() {
    for python in python3 python3.13 python3.12 python3.11; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            return
        fi
    done
    stop "no Python 3.11 or newer was found; please install one (on Debian and Ubuntu: apt install python3 python3-venv)"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

install_venv_package() {
    package=$("$python" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')
    advice="please run 'apt install $package' as root, or install uv, and try again"
    command -v apt-get >/dev/null || stop "this Python can neither make environments nor install packages; please install uv"
    as_root true 2>/dev/null || stop "this Python can neither make environments nor install packages; $advice"
    say "installing $package"
    as_root apt-get update -qq >/dev/null &&
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$package" >/dev/null || stop "apt-get failed; $advice"
}

pip_install_uv() { # The Python to run pip with, then what else to tell pip.
    runner=$1
    shift
    "$runner" -m pip install --quiet --disable-pip-version-check --root-user-action ignore "$@" uv >&2 ||
        stop "uv could not be installed, for the reason above; install it yourself or try again"
}

bring_uv() {
    find_python
    say "fetching uv into .launcher/, once"
    if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        :
    elif "$python" -m pip --version >/dev/null 2>&1; then
        # A folder of our own: Debian refuses pip its system folders, not this.
        pip_install_uv "$python" --target "$repo/.launcher/target" --upgrade
        return
    else
        install_venv_package
    fi
    "$python" -m venv --clear "$repo/.launcher/venv" >&2 || stop "no environment could be made, for the reason above"
    pip_install_uv "$repo/.launcher/venv/bin/python"
}

find_uv() {
    for uv in uv "$repo/.launcher/venv/bin/uv" "$repo/.launcher/target/bin/uv"; do
        # Asked, not only looked for: a version manager's shim may stand for a uv that is not there.
        if "$uv" --version >/dev/null 2>&1; then
            uv=$(command -v "$uv")
            return
        fi
    done
    false
}

sync() { # Brings the clone's own environment up to date, whatever environment the caller has active.
    UV_PROJECT_ENVIRONMENT=$repo/.venv "$uv" sync --project "$repo" "$@"
}

unset VIRTUAL_ENV
if ! find_uv; then
    bring_uv
    find_uv || stop "uv was installed but does not run; remove $repo/.launcher and try again"
fi
