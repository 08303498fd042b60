# `info/grafts` changes what history looks like.
attack() {
    mkdir -p .git/info
    git rev-parse main >.git/info/grafts
}
human() {
    :
}
harmed() {
    [ "$(git rev-list --count main)" -eq 1 ]
}
