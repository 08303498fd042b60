# A directory of logs is a symbolic link to a directory of the user.
attack() {
    rm -rf .git/logs/refs/heads
    ln -s "$PRECIOUS_DIR" .git/logs/refs/heads
}
human() {
    git branch planted
}
harmed() {
    [ -e "$PRECIOUS_DIR/planted" ]
}
