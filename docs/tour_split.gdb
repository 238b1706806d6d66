# Stops 11 to 16 of docs/tour_ranks.md, in their order, in rank 0 of two. From the root:
#
#     ./run build debug
#     export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29555
#     RANK=1 LOCAL_RANK=1 build/debug/examples/23_splitting --mesh tp=2 &
#     RANK=0 LOCAL_RANK=0 gdb -x docs/tour_split.gdb --args build/debug/examples/23_splitting --mesh tp=2
#
# Each stop arms the next, as in docs/tour_ranks.gdb. tests/check_tour.py runs this file.

set breakpoint pending on
set print demangle off

break enter_region
commands
  printf "\nStop 11: ENTER: the same on both\n"
  disable 1
  enable 2
end

break tn_linear_op
commands
  printf "\nStop 12: COLUMN: fewer rows\n"
  disable 2
  enable 3
end

break row_forward
commands
  printf "\nStop 13: ROW: a part of a sum\n"
  disable 3
  enable 4
end

break tn_dist_sum_parts
commands
  printf "\nStop 14: the sum\n"
  disable 4
  enable 5
end

break sum_parts_backward
commands
  printf "\nStop 15: back through the sum\n"
  disable 5
  enable 6
end

break tn_dist_sum_parts
commands
  printf "\nStop 16: back through the copy\n"
  disable 6
end

disable 2-6
run
