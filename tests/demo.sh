#!/bin/sh
# A demonstration on a real repository: what a turn may do, what stops it, and what the host sees afterwards.
# Everything happens in a temporary directory, which is removed at the end. Fails if anything is not as promised.
set -eu
cd "$(dirname "$0")/.."
shim=${CODEOID_SHIM_BIN:-$PWD/target/release/codeoid-shim}
[ -x "$shim" ] || { echo "demo: $shim does not exist: run make build first" >&2; exit 1; }

demo=$(mktemp -d "${TMPDIR:-/tmp}/codeoid-demo.XXXXXX")
demo=$(cd "$demo" && pwd -P)
trap 'chmod -R u+rwX "$demo" 2>/dev/null || :; rm -rf "$demo"' EXIT
trap 'exit 130' INT TERM HUP PIPE

# A machine of its own: a home with a key in it, and nothing of the real one.
unset $(env | sed -n 's/^\(GIT_[A-Z_]*\|CODEOID_[A-Z_]*\)=.*/\1/p') CODEOID_SHIM_BIN
export HOME="$demo/home" XDG_RUNTIME_DIR="$demo/run" XDG_STATE_HOME="$demo/home/.local/state"
export GIT_CONFIG_NOSYSTEM=1
unset XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME
mkdir -m 700 "$HOME" "$XDG_RUNTIME_DIR" "$HOME/.ssh"
echo 'PRIVATE KEY OF THE DEMONSTRATION' >"$HOME/.ssh/id_demo"
git config --global user.name 'A Human'
git config --global user.email human@example.org
git config --global init.defaultBranch main

if [ -t 1 ]; then bold=$(printf '\033[1m') plain=$(printf '\033[0m'); else bold= plain=; fi
heading() { printf '\n%s%s%s\n' "$bold" "$1" "$plain"; }
broken=0
promise() { # SENTENCE COMMAND...: says the sentence, and whether it is so
    sentence=$1
    shift
    if "$@" >"$demo/promise" 2>&1; then
        printf '  yes  %s\n' "$sentence"
    else
        printf '  NO   %s\n' "$sentence"
        sed 's/^/         /' "$demo/promise"
        broken=1
    fi
}

heading '1. A repository, and a human at work in it'
git init -q "$demo/shop"
cd "$demo/shop"
echo 'print("hello")' >shop.py
git add . && git commit -q -m 'Start the shop'
echo 'exit 0' >.git/hooks/pre-commit && chmod +x .git/hooks/pre-commit
git worktree add -q -b human-work ../human
echo 'half a thought, not committed' >../human/draft
echo 'print("good morning")' >../human/shop.py
git branch -q starting-point
echo '# Shop' >README.md && git add . && git commit -q -m 'Describe the shop'
git worktree list | sed "s|$demo/||; s/^/  /"
echo "  (the human has changes in ../human that are not committed)"

sums() { # what must not change, as one text
    (
        cd "$demo"
        find human home/.ssh shop/.git/worktrees/human shop/.git/hooks shop/.git/config -type f | sort | xargs sha256sum
        find shop -path shop/.git -prune -o -type f -print | sort | xargs sha256sum
    )
}
sums >"$demo/before"

heading '2. A turn: codeoid-shim run --session demo -- sh -c …'
status=0
DEMO_HUMAN="$demo/human" "$shim" run --session demo --workspace "$demo/shop" --pass-env DEMO_HUMAN \
    --report "$demo/report.json" -- sh -c '
work() { # SENTENCE COMMAND...: what an agent is there for
    sentence=$1; shift
    if output=$("$@" 2>&1); then echo "  done     $sentence"
    else echo "  FAILED   $sentence"; echo "$output" | sed "s/^/             /"; failed=1; fi
}
harm() { # SENTENCE COMMAND...: what it must not be able to do
    sentence=$1; shift
    if output=$("$@" 2>&1); then echo "  WORKED?! $sentence"; failed=1
    else echo "  stopped  $sentence"; echo "$output" | sed -n "\$s/^/             /p"; fi
}
failed=0
shop=$PWD
tree=$CODEOID_WORKTREE_DIR/feature
human=$DEMO_HUMAN

echo "Work, in a worktree of its own:"
work "git worktree add" git worktree add -q -b feature "$tree" starting-point
cd "$tree" || exit 1
echo "print(\"goodbye\")" >goodbye.py
work "git add, git commit" sh -c "git add goodbye.py && git commit -q -m \"Say goodbye\""
work "git rebase onto main" git rebase -q main
cd "$shop" || exit 1

echo "Harm, attempted:"
harm "overwrite a file of the human" sh -c "echo ruined >\"\$1\"" - "$human/shop.py"
harm "delete the human'\''s draft" rm "$human/draft"
harm "remove the human'\''s worktree, by force" git worktree remove --force "$human"
harm "redirect the human'\''s worktree to a repository of the agent" \
    sh -c "echo ../../../evil >.git/worktrees/human/commondir"
harm "delete the human'\''s entry" rm -rf .git/worktrees/human
harm "move all entries out of the way" mv .git/worktrees .git/aside
harm "plant a hook" sh -c "echo \"touch /tmp/owned\" >.git/hooks/pre-commit"
harm "make git run a program of the agent (core.fsmonitor)" git config core.fsmonitor "touch /tmp/owned"
harm "read the SSH key" cat "$HOME/.ssh/id_demo"
harm "send a signal to a process outside" kill -0 "'"$$"'"
exit "$failed"
' >"$demo/turn" 2>&1 || status=$?
sed "s|$demo/||g; s/^/  /" "$demo/turn"

heading '3. What the host sees now'
git worktree list | sed "s|$demo/||; s/^/  /"
git log --graph --format='%h %s%d' main feature | sed 's/^/  /'
own=$(git worktree list --porcelain | sed -n 's/^worktree \(.*\/feature\)$/\1/p')
sums >"$demo/after"
promise 'the turn did all its work and none of the harm' test "$status" -eq 0
promise 'its worktree lies in a folder beside the repository' test -n "$own" -a -f "$own/goodbye.py"
promise 'its commit is rebased onto main' git merge-base --is-ancestor main feature
promise 'the human'\''s files, entry, hooks, configuration and key are untouched' diff "$demo/before" "$demo/after"
promise 'the human can go on: git status works in their worktree' git -C "$demo/human" status --short
promise 'git finds nothing wrong with the repository (git fsck)' git fsck --no-progress
promise 'nothing new lies in the checkout' test -z "$(git status --porcelain)"

heading '4. The turn'\''s report'
if [ -s "$demo/report.json" ] && command -v jq >/dev/null 2>&1; then
    jq '{session, executor, sandbox, exit, limits, findings, warnings,
         enforced: [.coverage[] | select(.status == "enforced") | .rule],
         not_fully_enforced: [.coverage[] | select(.status != "enforced")], timing_ms}' "$demo/report.json" |
        sed "s|$demo/||g; s/^/  /"
else
    promise 'the turn wrote a report' test -s "$demo/report.json"
    sed 's/^/  /' "$demo/report.json" 2>/dev/null || :
fi

if [ "$broken" -eq 0 ]; then
    heading 'All of it went as promised.'
else
    heading 'Something did NOT go as promised: see the lines that start with NO, FAILED or WORKED.'
    exit 1
fi
