# There is no directory of hooks; the attacker makes one.
prepare() {
    rm -rf .git/hooks
}
attack() {
    mkdir .git/hooks
    plant .git/hooks/post-index-change
}
human() {
    touch src/text
    git status
}
harmed() {
    executed
}
