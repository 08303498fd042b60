#!/bin/sh
# The two rules of deny.toml that must hold even where cargo-deny is not installed: libcontainer is a
# dependency of codeoid-shim alone, gix of codeoid-hooks alone.
set -eu
cd "$(dirname "$0")/.."

# Direct dependents of a crate inside this workspace, one a line.
dependents() {
    cargo tree --quiet --workspace --all-features --edges normal,build,dev --invert "$1" --depth 1 --prefix none \
        | sed -n 's/^\(codeoid-[a-z]*\) .*/\1/p' | sort -u
}

failed=0
only() {
    seen=$(dependents "$1" | tr '\n' ' ')
    if [ "$seen" = "$2 " ]; then
        echo "dependency rule holds: $1 is used by $2 alone"
    else
        echo "dependency rule broken: $1 is allowed in $2 alone, but is used by: ${seen:-nobody}" >&2
        failed=1
    fi
}

only libcontainer codeoid-shim
only gix codeoid-hooks
exit "$failed"
