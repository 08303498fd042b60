# Objects are borrowed from a directory of the attacker.
attack() {
    mkdir -p o/info
    git hash-object --stdin </dev/null >/dev/null
    echo "$PWD/o" >>.git/objects/info/alternates
}
human() {
    :
}
harmed() {
    grep -q "/o$" .git/objects/info/alternates
}
