# The log of a branch is a symbolic link to a file of the user.
attack() {
    rm -f .git/logs/refs/heads/main
    ln -s "$PRECIOUS" .git/logs/refs/heads/main
}
human() {
    git commit -q --allow-empty -m human
}
harmed() {
    overwritten
}
