# The index is a symbolic link into a directory of the user, where git then writes.
attack() {
    mv .git/index i
    ln -s "$PRECIOUS_DIR/planted" .git/index
}
human() {
    git add -A
}
harmed() {
    [ -e "$PRECIOUS_DIR/planted" ]
}
