# `commondir` in the main git directory redirects git to a repository of the attacker.
attack() {
    evil_common "$PWD/.evil"
    echo "$PWD/.evil" >.git/commondir
}
human() {
    git status
}
harmed() {
    executed
}
