# The configuration is a symbolic link to a file of the user.
prepare() {
    cp .git/config "$PRECIOUS_CONFIG"
}
attack() {
    cp .git/config c
    mv .git/config old
    rm -f .git/config
    ln -s "$PRECIOUS_CONFIG" .git/config
}
human() {
    git config human.key value
}
harmed() {
    grep -q human "$PRECIOUS_CONFIG"
}
