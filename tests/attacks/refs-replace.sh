# A replacement ref makes another object appear in place of one.
attack() {
    git replace "$(git rev-parse main:src/third)" "$(echo EVIL | git hash-object -w --stdin)"
}
human() {
    rm src/third
    git checkout -q -- src/third
}
harmed() {
    grep -qx EVIL src/third
}
