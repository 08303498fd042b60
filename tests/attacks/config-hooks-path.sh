# The repository's configuration moves the hooks to a directory of the attacker.
attack() {
    mkdir -p h
    plant h/pre-commit
    git config core.hooksPath "$PWD/h"
    printf "[core]\n\thooksPath = %s/h\n" "$PWD" >>.git/config
}
human() {
    git commit -q --allow-empty -m human
}
harmed() {
    executed
}
