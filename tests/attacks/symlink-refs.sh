# A directory of refs is a symbolic link to a directory of the user.
attack() {
    ln -s "$PRECIOUS_DIR" .git/refs/heads/d
}
human() {
    git branch d/planted
}
harmed() {
    [ -e "$PRECIOUS_DIR/planted" ]
}
