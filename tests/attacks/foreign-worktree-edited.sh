# Files in somebody else's worktree are overwritten.
attack() {
    echo ruined >"$VICTIM/uncommitted"
    git -C "$VICTIM" checkout -q -f -- .
    git -C "$VICTIM" clean -qfdx
    git -C "$VICTIM" stash -q -u
}
human() {
    :
}
harmed() {
    ! grep -qx precious "$VICTIM/uncommitted" || ! grep -q human "$VICTIM/src/third"
}
