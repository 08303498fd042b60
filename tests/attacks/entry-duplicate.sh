# A second entry for somebody else's worktree: git's housekeeping deletes the first.
attack() {
    cp -r "$ENTRY" "$COMMON/worktrees/0dup"
    echo "$VICTIM/.git" >"$COMMON/worktrees/0dup/gitdir"
}
human() {
    git worktree prune --expire=now
    git gc -q
}
harmed() {
    [ ! -d "$ENTRY" ]
}
