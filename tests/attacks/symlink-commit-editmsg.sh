# `COMMIT_EDITMSG` is a symbolic link to a file of the user.
attack() {
    rm -f .git/COMMIT_EDITMSG
    ln -s "$PRECIOUS" .git/COMMIT_EDITMSG
}
human() {
    git commit -q --allow-empty -m human
}
harmed() {
    overwritten
}
