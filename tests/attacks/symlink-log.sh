# The log of HEAD is a symbolic link to a file of the user.
attack() {
    rm -f .git/logs/HEAD
    ln -s "$PRECIOUS" .git/logs/HEAD
}
human() {
    git commit -q --allow-empty -m human
}
harmed() {
    overwritten
}
