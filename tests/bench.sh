#!/bin/bash
# How fast and how small: whole-process start-to-exit of `codeoid-shim run -- true` beside bwrap with the same
# view, in pairs, with a pause of 40 ms before each run (hot loops hide what an agent's single commands pay).
# Prints one table; the targets are ratios, because absolute times belong to one machine.
#
#   RUNS=25 tests/bench.sh      more or fewer runs of each pair (default 15)
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${RUNS:-15}
source_shim=${CODEOID_SHIM_BIN:-$PWD/target/release/codeoid-shim}
[ -x "$source_shim" ] || { echo "bench: $source_shim does not exist: run make build first" >&2; exit 1; }
for tool in bwrap hyperfine jq; do
    command -v "$tool" >/dev/null || { echo "bench: $tool is not installed: run make setup" >&2; exit 1; }
done

if [ "$(id -u)" -eq 0 ]; then base=/home; else base=$HOME; fi
bench=$(mktemp -d "$base/codeoid-bench.XXXXXX")
chmod 755 "$bench"
trap 'chmod -R u+rwX "$bench" 2>/dev/null || :; rm -rf "$bench" ${runtimes_made:-}' EXIT
for signal in INT TERM HUP PIPE; do trap "echo 'bench: ended by SIG$signal' >&2; exit 130" "$signal"; done
mkdir "$bench/bin"
cp "$source_shim" tests/fixtures/many-worktrees.sh "$bench/bin/"
[ ! -e "$(dirname "$source_shim")/codeoid-hook" ] || cp "$(dirname "$source_shim")/codeoid-hook" "$bench/bin/"
shim=$bench/bin/codeoid-shim

runtimes_made=''
printf '%-12s %-44s %9s %9s %7s  %s\n' user case shim/ms other/ms ratio target
row() { # CASE SHIM OTHER TARGET: times in seconds
    awk -v user="$who" -v name="$1" -v a="$2" -v b="$3" -v target="$4" 'BEGIN {
        printf "%-12s %-44s %9.2f %9.2f %7.2f  %s\n", user, name, a * 1000, b * 1000, a / b, target }'
}

# Runs two commands in alternating rounds; leaves the middle round's medians (by ratio: one round's noise moves
# neither) in last_ours and last_other.
measure_pair() { # FIRST SECOND
    local round rounds=''
    for round in 1 2 3; do
        as hyperfine --shell none --style none --warmup 2 --runs "$((runs / 3))" --prepare 'sleep 0.04' \
            --export-json "$scratch/result" "$1" "$2" >/dev/null 2>"$scratch/error" || {
            reason=$(head -c 100 "$scratch/error" | head -1)
            return 1
        }
        rounds+=$(jq -r '[.results[0].median / .results[1].median, .results[0].median, .results[1].median] | @tsv' \
            "$scratch/result")$'\n'
    done
    read -r _ last_ours last_other < <(printf '%s' "$rounds" | sort -g | sed -n 2p)
}

pair() { # CASE TARGET SHIM-COMMAND OTHER-COMMAND
    if measure_pair "$3" "$4"; then
        row "$1" "$last_ours" "$last_other" "$2"
    else
        printf '%-12s %-44s %s\n' "$who" "$1" "failed: $reason"
    fi
}

# What one thing costs: two commands of the shim in pairs, as above.
more() { # CASE TARGET WITHOUT WITH
    local name=$1 target=$2 without=$3 with=$4
    measure_pair "$with" "$without" || { printf '%-12s %-44s %s\n' "$who" "$name" "failed: $reason"; return 0; }
    awk -v user="$who" -v name="$name" -v target="$target" -v a="$last_ours" -v b="$last_other" 'BEGIN {
        printf "%-12s %-44s %9.2f %9.2f %+7.2f  %s\n", user, name, a * 1000, b * 1000, (a - b) * 1000, target }'
}

view="--die-with-parent --unshare-all --share-net --ro-bind / / --dev /dev --proc /proc --tmpfs /tmp --tmpfs /var/tmp --tmpfs /run"

measure() {
    scratch=$bench/$who
    mkdir "$scratch" && own "$scratch"
    # In memory, as a runtime directory is (XDG Base Directory Specification).
    if [ -d /dev/shm ]; then runtime=$(mktemp -d /dev/shm/codeoid-bench.XXXXXX); else runtime=$scratch/run; fi
    runtimes_made+=" $runtime"
    mkdir -p "$runtime" && chmod 700 "$runtime" && own "$runtime"
    as mkdir -p "$scratch/home/ws" "$scratch/home/rules" "$scratch/state"
    local ws=$scratch/home/ws run="$shim --root $runtime/shim run --session bench --workspace"

    pair 'no rules' '<= 1.0 (bwrap)' "$run $ws -- true" "bwrap $view --bind $ws $ws true"
    # What the view consists of, mount by mount, where a bind stands for each overlay.
    as "$shim" --root "$runtime/shim" bundle --session bench --workspace "$ws" --output "$runtime/mounts" -- true
    pair 'no rules, bwrap with the same mounts' '' "$run $ws -- true" "bwrap $(same_mounts) true"

    # Half of them hidden files, half of them read-only directories below the writable workspace's parent.
    local options='' binds='' number
    for number in $(seq 50); do
        as touch "$scratch/home/rules/hidden$number"
        as mkdir -p "$scratch/home/rules/read$number"
        options+=" --hide $scratch/home/rules/hidden$number --read $scratch/home/rules/read$number"
        binds+=" --ro-bind /dev/null $scratch/home/rules/hidden$number --ro-bind $scratch/home/rules/read$number $scratch/home/rules/read$number"
    done
    pair '100 hide and read-only rules' '<= 0.3 (bwrap)' \
        "$shim run --session rules --workspace $ws$options -- true" "bwrap $view --bind $ws $ws$binds true"

    for number in repo many; do
        as git init -q "$scratch/home/$number"
        as git -C "$scratch/home/$number" -c user.name=b -c user.email=b@example.org commit -q --allow-empty -m first
        as git -C "$scratch/home/$number" branch -q -M main
        as git -C "$scratch/home/$number" worktree add -q --detach "$scratch/home/$number-one" main
    done
    as sh "$bench/bin/many-worktrees.sh" "$scratch/home/many" "$scratch/home/thousand" 1000
    more 'in a repository: more than outside (ms)' '<= 8 ms' "$run $ws -- true" "$run $scratch/home/repo -- true"
    more '1,000 worktrees: more than one (ms)' '<= 50 ms' "$run $scratch/home/repo -- true" "$run $scratch/home/many -- true"

    shadow

    at_once "$ws"
    resident "$ws"
    [ "$who" = root ] || return 0
    runtimes "$ws"
}

# Protection `shadow` beside `shared`: build or refresh, and the final import, of a turn that changes nothing; and of
# one that commits ten times, beside the same without a sandbox.
shadow() {
    local home=$scratch/home shadow="$shim --root $runtime/shim run --session shadow --git-protection shadow --workspace" name
    large "$home/large"
    more 'shadow: more than shared, small (ms)' '<= 10 ms' "$run $home/repo -- true" "$shadow $home/repo -- true"
    more 'shadow: more than shared, large (ms)' '<= 40 ms' "$run $home/large -- true" "$shadow $home/large -- true"
    more 'shadow: 1,000 worktrees more than one (ms)' 'about 0' "$shadow $home/repo -- true" "$shadow $home/many -- true"
    cat >"$scratch/ten" <<'SCRIPT'
#!/bin/sh
cd "${1:-.}" || exit
for number in 1 2 3 4 5 6 7 8 9 10; do
    echo $$ $number >>file && git add file &&
        git -c user.name=b -c user.email=b@example.org commit -q -m "$number" || exit
done
SCRIPT
    chmod 755 "$scratch/ten"
    for name in ten-shadow ten-plain; do
        as git init -q "$home/$name"
        as git -C "$home/$name" -c user.name=b -c user.email=b@example.org commit -q --allow-empty -m first
    done
    pair 'shadow: ten commits' '<= 1.5 (no sandbox)' "$shadow $home/ten-shadow -- $scratch/ten" \
        "env HOME=$home $scratch/ten $home/ten-plain"
}

# A repository with 80,000 commits in a pack and 2,000 loose refs.
large() {
    as git init -q "$1"
    awk 'BEGIN {
        for (n = 1; n <= 80000; n++) {
            printf "commit refs/heads/main\nmark :%d\ncommitter b <b@example.org> %d +0000\ndata 1\nc\n", n, 1600000000 + n
            printf "M 100644 inline f%d\ndata 2\nx\n\n", n % 500
        }
        print "done" }' | as git -C "$1" fast-import --quiet --done
    as git -C "$1" checkout -q -f main 2>/dev/null || as git -C "$1" symbolic-ref HEAD refs/heads/main
    as git -C "$1" reset -q --hard
    as git -C "$1" rev-list -n 2000 main | awk '{ print "create refs/heads/topic/" NR, $1 }' | as git -C "$1" update-ref --stdin
}

# The bundle's mounts in bwrap's words.
same_mounts() {
    printf '%s ' --die-with-parent --unshare-all --share-net
    jq -r '.mounts[] | .destination as $at |
        if .type == "tmpfs" and $at == "/dev" then "--dev \($at)"
        elif .type == "tmpfs" then "--tmpfs \($at)"
        elif .type == "proc" then "--proc \($at)"
        elif .type == "devpts" then empty
        elif .type == "overlay" then "--ro-bind \($at) \($at)"
        elif (.options | any(. == "rro" or . == "ro")) then "--ro-bind \(.source) \($at)"
        else "--bind \(.source) \($at)" end' "$runtime/mounts/config.json" | tr '\n' ' '
    for link in /bin /lib /lib64 /sbin; do
        [ ! -L "$link" ] || printf -- '--symlink %s %s ' "$(readlink "$link")" "$link"
    done
}

at_once() { # fifty turns at the same time
    local ws=$1 kind times_shim=() times_bwrap=() failed=0
    cat >"$scratch/fifty" <<'SCRIPT'
#!/bin/sh
failures=0 pids=
for number in $(seq 50); do "$@" & pids="$pids $!"; done
for pid in $pids; do wait "$pid" || failures=$((failures + 1)); done
exit "$failures"
SCRIPT
    chmod 755 "$scratch/fifty"
    pair '50 at once' '<= 1.0 (bwrap), none fails' "$scratch/fifty $shim --root $runtime/shim run --session fifty --workspace $ws -- true" \
        "$scratch/fifty bwrap $view --bind $ws $ws true"
}

# Sum of resident and private memory of a supervisor while a turn sleeps.
resident() {
    local ws=$1 pid total=0 process
    as "$shim" run --session rss --workspace "$ws" -- sleep 3 &
    pid=$!
    sleep 1
    for process in $(pgrep -x codeoid-shim -P "$pid" || :) "$pid"; do
        [ "$(cat "/proc/$process/comm" 2>/dev/null)" = codeoid-shim ] || continue
        total=$(awk '/^VmRSS/ { print $2 }' "/proc/$process/status")
        break
    done
    wait "$pid" || :
    printf '%-12s %-44s %6.2f MB %9s %7s  %s\n' "$who" 'resident memory of the supervisor' \
        "$(awk -v kb="$total" 'BEGIN { print kb / 1024 }')" '' '' '<= 8 MB'
}

# The shim's own bundle, run by itself and by the other runtimes that are installed.
runtimes() {
    local ws=$1 runtime
    "$shim" bundle --session bench --workspace "$ws" --output "$scratch/bundle" -- true >/dev/null 2>&1 || {
        printf '%-12s %-44s %s\n' "$who" 'other runtimes' 'failed: no bundle was written'
        return 0
    }
    for runtime in runc crun youki; do
        command -v "$runtime" >/dev/null || continue
        printf '#!/bin/sh\nid=bench-$$\n%s --root %s/%s run --bundle %s/bundle $id </dev/null >/dev/null 2>%s/error-%s\ncode=$?\n%s --root %s/%s delete --force $id 2>/dev/null\nexit $code\n' \
            "$runtime" "$scratch" "$runtime" "$scratch" "$scratch" "$runtime" "$runtime" "$scratch" "$runtime" >"$scratch/with-$runtime"
        chmod 755 "$scratch/with-$runtime"
        # crun refuses a host that has both versions of cgroups, unless the second is out of sight.
        if [ "$runtime" = crun ] && mountpoint -q /sys/fs/cgroup/unified; then
            sed -i '1a umount /sys/fs/cgroup/unified 2>/dev/null || :' "$scratch/with-$runtime"
            pair "the same bundle with $runtime" "($runtime)" "$run $ws -- true" "unshare -m $scratch/with-$runtime"
        else
            pair "the same bundle with $runtime" "($runtime)" "$run $ws -- true" "$scratch/with-$runtime"
        fi
    done
}

# Commands of the user who is measured, with their own home (a turn keeps its changes to it to itself), and all state
# in the scratch directory.
as() {
    local environment=(HOME="$(getent passwd "$who" | cut -d: -f6)" XDG_RUNTIME_DIR="$runtime" XDG_STATE_HOME="$scratch/state"
        PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin)
    if [ "$who" = "$(id -un)" ]; then
        env -i "${environment[@]}" "$@"
    else
        setpriv --reuid="$who" --regid="$(id -g "$who")" --init-groups env -i "${environment[@]}" "$@"
    fi
}
own() { [ "$who" = "$(id -un)" ] || chown "$who:" "$1"; }

who=$(id -un)
measure
if [ "$(id -u)" -eq 0 ] && getent passwd codeoid-test >/dev/null; then
    who=codeoid-test
    measure
fi
