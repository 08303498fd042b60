#!/bin/sh
# The checks of an OCI runtime (tests/tests/oci.rs), this program and runc side by side. Ends with 1 where this program
# misses what runc does.
set -eu
cd "$(dirname "$0")/.."
if [ -d "$HOME/.cargo/bin" ]; then PATH="$HOME/.cargo/bin:$PATH"; fi

# A line for each test: "test the_check::own ... ok". One at a time: a check that is slow for one of them is seen.
cargo test --locked -p codeoid-tests --test oci -- --test-threads=2 2>/dev/null |
    awk '
        $1 == "test" && $3 == "..." {
            split($2, name, "::")
            if (!(name[1] in seen)) { seen[name[1]] = 1; order[++count] = name[1] }
            result[name[1], name[2]] = $4
        }
        END {
            if (!count) { print "conformance: no check has run" > "/dev/stderr"; exit 2 }
            printf "%-52s %-14s %s\n", "check", "codeoid-shim", "runc"
            for (i = 1; i <= count; i++) {
                own = result[order[i], "own"]; runc = result[order[i], "reference"]
                printf "%-52s %-14s %s\n", order[i], own, runc
                passed["own"] += own == "ok"; passed["runc"] += runc == "ok"
                missed += own != "ok" && runc == "ok"
            }
            printf "%-52s %-14s %s\n", "passed of " count, passed["own"], passed["runc"]
            exit missed > 0
        }'
