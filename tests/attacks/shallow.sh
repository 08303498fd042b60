# `shallow` cuts history off.
attack() {
    git rev-parse main >.git/shallow
}
human() {
    :
}
harmed() {
    [ "$(git rev-list --count main)" -eq 1 ]
}
