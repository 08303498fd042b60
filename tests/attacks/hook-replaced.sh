# A hook that exists runs another program.
prepare() {
    printf '#!/bin/sh\nexit 0\n' >.git/hooks/pre-commit
    chmod +x .git/hooks/pre-commit
}
attack() {
    plant .git/hooks/pre-commit
    plant h
    mv -f h .git/hooks/pre-commit
}
human() {
    git commit -q --allow-empty -m human
}
harmed() {
    executed
}
