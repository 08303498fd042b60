# The hooks of a submodule's repository run the attacker's program.
prepare() {
    git submodule --quiet add "$REMOTE" sub
    git commit -qm sub
}
attack() {
    mkdir -p .git/modules/sub/hooks
    plant .git/modules/sub/hooks/post-index-change
}
human() {
    touch sub/README.md
    git -C sub status
}
harmed() {
    executed
}
