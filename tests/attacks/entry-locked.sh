# A foreign worktree is locked, and cannot be removed by its owner any more.
attack() {
    echo "not yours" >"$ENTRY/locked"
}
human() {
    git worktree remove --force "$VICTIM"
}
harmed() {
    [ -d "$ENTRY" ]
}
