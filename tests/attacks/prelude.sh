# What every attack finds. An attack file defines attack (runs in the workspace: first outside, to show that it
# works, then inside a turn), human (what somebody then does on the host), harmed (whether it did harm), and
# may define prepare (on the host, before). A line `# limit: …` says that the sandbox does not prevent it and
# why; docs/sandbox.md must say so too. `# finding: KIND` says what the report names all the same, and
# `# unsound: …` that git misses something afterwards, although no harm is done.
#
#   REPO the workspace, a main checkout · COMMON its common dir · VICTIM somebody else's worktree · ENTRY its
#   entry · W the session's folder · REMOTE the bare remote · MARK a file that exists once the attacker's
#   program has run · PRECIOUS, PRECIOUS_DIR, … things of the user

EVIL=$REPO/evil

plant() { # FILE: a program of the attacker
    printf '#!/bin/sh\ntouch %s\n' "$MARK" >"$1"
    chmod +x "$1"
}

evil() { plant "$EVIL"; }

evil_common() { # DIRECTORY: a git directory whose configuration runs the attacker's program
    evil
    git clone -q --bare "$REPO" "$1.tmp" 2>/dev/null
    mkdir -p "$1"
    cp -r "$1.tmp/." "$1/"
    rm -rf "$1.tmp"
    git config -f "$1/config" core.bare false
    git config -f "$1/config" core.fsmonitor "$EVIL"
}

executed() { [ -e "$MARK" ]; }

overwritten() { [ "$(cat "$PRECIOUS")" != precious ]; }

craft_index() { # FILE PATH BLOB [MODE]: adds a path to an index that no git would add
    python3 - "$@" <<'PYTHON'
import hashlib, struct, subprocess, sys
target, path, blob = sys.argv[1:4]
mode = int(sys.argv[4], 8) if len(sys.argv) > 4 else 0o100644
entries = [(path.encode(), mode, bytes.fromhex(blob))]
listing = subprocess.run(['git', 'ls-tree', '-r', '-z', '--full-tree', 'main'], capture_output=True).stdout
for line in listing.split(b'\0')[:-1]:
    head, name = line.split(b'\t')
    kind = head.split(b' ')
    entries.append((name, int(kind[0], 8), bytes.fromhex(kind[2].decode())))
data = b'DIRC' + struct.pack('>II', 2, len(entries))
for name, mode, oid in sorted(entries):
    entry = bytes(24) + struct.pack('>I', mode) + bytes(12) + oid + struct.pack('>H', min(len(name), 0xfff)) + name
    data += entry + bytes(8 - len(entry) % 8)
with open(target, 'wb') as f:
    f.write(data + hashlib.sha1(data).digest())
PYTHON
}
