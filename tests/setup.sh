#!/bin/sh
# Installs what building, testing and measuring need and this machine lacks. Idempotent; does nothing, and
# asks no package mirror anything, when all is there.
#
# On Debian and Ubuntu it installs with apt-get, as root or through sudo. Elsewhere it names what is missing.
# As root it also creates the user codeoid-test, as whom the tests run a second time.
set -eu

test_user=codeoid-test

# "what to look for|Debian package": a command in PATH, or a library that pkg-config knows, or a file.
needed='
command:git|git
command:curl|curl
command:gcc|gcc
command:make|make
command:pkg-config|pkg-config
library:libseccomp|libseccomp-dev
command:bwrap|bubblewrap
command:runc|runc
command:crun|crun
command:podman|podman
command:conmon|conmon
command:containerd|containerd
command:dockerd|docker.io
command:ip|iproute2
command:ps|procps
command:strace|strace
command:jq|jq
command:hyperfine|hyperfine
command:newuidmap|uidmap
command:setpriv|util-linux
command:script|bsdutils
file:/bin/busybox|busybox-static
command:setfattr|attr
command:setfacl|acl
file:/usr/bin/python3|python3
file:/usr/lib/python3/dist-packages/pip|python3-pip
command:npm|npm
command:openssl|openssl
file:/usr/lib/postgresql|postgresql
'

# runc, crun and newuidmap live where an ordinary user's PATH may not reach.
PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
if [ -d "$HOME/.cargo/bin" ]; then PATH="$HOME/.cargo/bin:$PATH"; fi

present() {
    case "$1" in
        command:*) command -v "${1#command:}" >/dev/null 2>&1 ;;
        library:*) pkg-config --exists "${1#library:}" 2>/dev/null ;;
        file:*) [ -e "${1#file:}" ] ;;
    esac
}

missing() {
    for pair in $needed; do
        present "${pair%|*}" || printf '%s ' "${pair#*|}"
    done
    # The toolchain may come from rustup or from the distribution; only its absence is this script's concern.
    command -v cargo >/dev/null 2>&1 || printf 'rustup '
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo "$@"; fi
}

packages=$(missing)
if [ -n "$packages" ]; then
    echo "setup: missing: $packages"
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "setup: this is not a Debian or Ubuntu system: please install them with its package manager" >&2
        exit 1
    fi
    if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null 2>&1; then
        echo "setup: installing needs root or sudo; as root: apt-get install $packages" >&2
        exit 1
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get update -q
    for package in $packages; do
        # One by one: a release that lacks one of them (rustup is young) still gets the others.
        # The tests start engines of their own: no daemon is started where the system asks for the run level.
        as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -q -y --no-install-recommends "$package" ||
            echo "setup: could not install $package" >&2
    done
fi

if ! command -v cargo >/dev/null 2>&1 && command -v rustup >/dev/null 2>&1; then
    rustup default stable
fi
if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: no Rust toolchain (1.88 or newer): see https://rustup.rs" >&2
    exit 1
fi

if [ "$(id -u)" -eq 0 ] && ! getent passwd "$test_user" >/dev/null; then
    useradd --create-home --shell /bin/sh "$test_user"
    echo "setup: user $test_user created"
fi

packages=$(missing)
if [ -n "$packages" ]; then
    echo "setup: still missing: $packages" >&2
    exit 1
fi
if ! cargo nextest --version >/dev/null 2>&1; then
    echo "setup: cargo-nextest is not installed: the tests run with cargo test instead"
fi
echo "setup: complete"
