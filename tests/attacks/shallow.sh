# `shallow` cuts history off.
# limit: a turn may fetch with a depth; it is reported
# finding: shallow-changed
attack() {
    git rev-parse main >.git/shallow
}
human() {
    :
}
harmed() {
    [ "$(git rev-list --count main)" -eq 1 ]
}
