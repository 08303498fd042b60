# A hook appears beside those that exist.
attack() {
    plant .git/hooks/post-index-change
}
human() {
    touch src/text
    git status
}
harmed() {
    executed
}
