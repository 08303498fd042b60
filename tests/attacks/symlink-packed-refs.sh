# `packed-refs` is a symbolic link to a file of the user.
prepare() {
    git for-each-ref --format="%(objectname) %(refname)" refs/tags >"$PRECIOUS_REFS"
    cp "$PRECIOUS_REFS" "$PRECIOUS_REFS.copy"
}
attack() {
    rm -f .git/packed-refs
    ln -s "$PRECIOUS_REFS" .git/packed-refs
}
human() {
    git pack-refs --all
}
harmed() {
    ! cmp -s "$PRECIOUS_REFS" "$PRECIOUS_REFS.copy"
}
