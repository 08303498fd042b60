# `FETCH_HEAD` is a symbolic link to a file of the user.
attack() {
    rm -f .git/FETCH_HEAD
    ln -s "$PRECIOUS" .git/FETCH_HEAD
}
human() {
    git fetch -q origin
}
harmed() {
    overwritten
}
