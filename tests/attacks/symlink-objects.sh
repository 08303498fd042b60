# A directory of objects is a symbolic link to a directory of the user.
attack() {
    for n in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do for m in 0 1 2 3 4 5 6 7 8 9 a b c d e f; do [ -e ".git/objects/$n$m" ] || ln -s "$PRECIOUS_DIR" ".git/objects/$n$m"; done; done
}
human() {
    for n in 1 2 3 4 5 6 7 8; do git commit -q --allow-empty -m "human $n"; done
}
harmed() {
    [ "$(ls "$PRECIOUS_DIR" | wc -l)" -gt 1 ]
}
