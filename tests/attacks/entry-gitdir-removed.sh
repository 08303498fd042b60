# A foreign entry loses its `gitdir`: git's housekeeping deletes it.
attack() {
    rm "$ENTRY/gitdir"
}
human() {
    git worktree prune --expire=now
}
harmed() {
    [ ! -d "$ENTRY" ]
}
