# A foreign entry is deleted.
attack() {
    rm -rf "$ENTRY"
    git worktree remove --force "$VICTIM"
}
human() {
    git -C "$VICTIM" status
}
harmed() {
    ! git -C "$VICTIM" status
}
