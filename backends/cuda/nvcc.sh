#!/bin/sh
# nvcc.sh USAGE NVCC ARGUMENTS...: compiles, and keeps in the file USAGE what ptxas says of each kernel: its registers and spills,
# which tests/cuda/test_registers.py reads. Everything else that nvcc says goes to stderr.
usage=$1
shift
"$@" -Xptxas -v 2>"$usage"
status=$?
grep -v -e '^ptxas info  *: ' -e '^ *Function properties for ' -e '^ *[0-9]* bytes stack frame' "$usage" >&2
exit $status
