#!/usr/bin/env bash
# Idle threads of OpenMP soon sleep (core/wait.c), unless the user has said how long they wait; the environment is unchanged.
set -eu
program=$TERN_TEST_BIN/wait_program
case $(ldd "$program") in *libgomp*) ;; *) echo "not libgomp"; exit 77 ;; esac

# What libgomp says it has read, and what the program then sees of it.
seen() {
    env -u GOMP_SPINCOUNT -u OMP_WAIT_POLICY OMP_DISPLAY_ENV=verbose "$@" "$program" 2>&1 | sed -n "s/.*GOMP_SPINCOUNT = '\(.*\)'/\1/p; s/^program: //p" | paste -sd' '
}

expect() {
    [ "$1" = "$2" ] || { echo "expected: $1; seen: $2"; exit 1; }
}
expect "10000 unset" "$(seen env)"
expect "7 7" "$(seen env GOMP_SPINCOUNT=7)"
expect "0 unset" "$(seen env OMP_WAIT_POLICY=passive)"
expect "10000 unset" "$(seen env -i OMP_DISPLAY_ENV=verbose)"
