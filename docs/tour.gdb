# The stops of docs/tour_short.md, in their order. From the root:
#
#     ./run build debug
#     gdb -x docs/tour.gdb build/debug/examples/02_line
#
# Each stop arms the next, so the many other calls of these functions pass. `continue` goes on, `backtrace` shows who
# called, `finish` what comes back. tests/check_tour.py runs this file.

set breakpoint pending on
# Without debug information tn__node_record would be taken for a name in Ada.
set print demangle off
set environment TERN_CPU plain

break tn_call
commands
  printf "\nStop 1: the bracket around a module\n"
  disable 1
  enable 2
end

break tn_linear_op
commands
  printf "\nStop 2: an operation\n"
  disable 2
  enable 3
end

break tn_apply
commands
  printf "\nStop 3: the life of every operation\n"
  disable 3
  enable 4
end

break tn__ref_linear
commands
  printf "\nStop 4: the kernel\n"
  disable 4
  enable 5
end

break tn__node_record
commands
  printf "\nStop 5: a node is recorded\n"
  disable 5
  enable 6
end

break tn_backward
commands
  printf "\nStop 6: backward\n"
  disable 6
  enable 7
end

break tn__leaf_accumulate
commands
  printf "\nStop 7: a leaf has its gradient\n"
  disable 7
  enable 8
end

break tn_optim_step
commands
  printf "\nStop 8: the step\n"
  disable 8
end

disable 2-8
run
