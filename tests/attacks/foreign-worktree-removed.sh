# Somebody else's worktree is removed with uncommitted work in it.
attack() {
    rm -rf "$VICTIM"
    git worktree remove --force "$VICTIM"
    git worktree prune --expire=now
    mv "$VICTIM" gone
}
human() {
    :
}
harmed() {
    [ ! -f "$VICTIM/uncommitted" ]
}
