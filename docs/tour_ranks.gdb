# The stops of docs/tour_ranks.md, in their order, in rank 0 of two. From the root:
#
#     ./run build debug
#     export WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29555
#     RANK=1 LOCAL_RANK=1 build/debug/examples/07_ddp &
#     RANK=0 LOCAL_RANK=0 gdb -x docs/tour_ranks.gdb build/debug/examples/07_ddp
#
# Each stop arms the next, so the many other calls of these functions pass. Rank 1 waits meanwhile. `continue` goes on,
# `info threads` shows who is where, `backtrace` who called. tests/check_tour.py runs this file.

set breakpoint pending on
set print demangle off

break tn__leaf_lend
commands
  printf "\nStop 1: memory is lent\n"
  disable 1
  enable 2
end

break tn__leaf_accumulate
commands
  printf "\nStop 2: a leaf has its gradient\n"
  disable 2
  enable 3
end

break tn__ddp_ready
commands
  printf "\nStop 3: a bucket counts\n"
  disable 3
  enable 4
end

break tn_all_reduce
commands
  printf "\nStop 4: one tensor for the group\n"
  disable 4
  enable 5
end

break tn__group_issue
commands
  printf "\nStop 5: a number in the queue\n"
  disable 5
  enable 6
end

break tn__shm_collective
commands
  printf "\nStop 6: the other thread\n"
  disable 6
  enable 7
end

break tn__shm_barrier
commands
  printf "\nStop 7: the other rank\n"
  disable 7
  enable 8
end

break tn__view_reduce
commands
  printf "\nStop 8: a slice for both\n"
  disable 8
  enable 9
end

break tn__flight_ended
commands
  printf "\nStop 9: it has arrived\n"
  disable 9
  enable 10
end

break tn_optim_step
commands
  printf "\nStop 10: the same step on both\n"
  disable 10
end

disable 2-10
run
