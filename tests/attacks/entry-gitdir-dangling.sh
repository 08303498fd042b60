# A foreign entry points nowhere: git's housekeeping deletes it.
attack() {
    echo /nowhere/.git >"$ENTRY/gitdir"
    touch -d 2001-01-01 "$ENTRY/index" "$ENTRY/gitdir"
}
human() {
    git worktree prune --expire=now
    git gc -q
}
harmed() {
    [ ! -d "$ENTRY" ]
}
