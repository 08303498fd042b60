# An object is replaced by another under the same name.
# unsound: the forged object is removed, but its original is gone
attack() {
    oid=$(git rev-parse main:src/third)
    p=.git/objects/$(echo $oid | cut -c1-2)/$(echo $oid | cut -c3-)
    chmod u+w $p
    n=$(echo EVIL | git hash-object -w --stdin)
    cp -f .git/objects/$(echo $n | cut -c1-2)/$(echo $n | cut -c3-) $p
}
human() {
    rm src/third
    git checkout -q -- src/third
}
harmed() {
    grep -qx EVIL src/third
}
