# The stops of docs/tour_mesh.md, in their order, in rank 0 of eight. From the root:
#
#     ./run build debug
#     export WORLD_SIZE=8 LOCAL_WORLD_SIZE=8 MASTER_ADDR=127.0.0.1 MASTER_PORT=29555
#     for r in 1 2 3 4 5 6 7; do
#         RANK=$r LOCAL_RANK=$r build/debug/examples/23_splitting --mesh dp=2,tp=2,pp=2 &
#     done
#     RANK=0 LOCAL_RANK=0 gdb -x docs/tour_mesh.gdb --args build/debug/examples/23_splitting --mesh dp=2,tp=2,pp=2
#
# Each stop arms the next, as in docs/tour_ranks.gdb. tests/check_tour.py runs this file.

set breakpoint pending on
set print demangle off

break tn_spread_step
commands
  printf "\nStop 1: two micro-batches\n"
  disable 1
  enable 2
end

break tn_pipeline_step
commands
  printf "\nStop 2: a row of the schedule\n"
  disable 2
  enable 3
end

break tn__lm_forward
commands
  printf "\nStop 3: some parts of the model\n"
  disable 3
  enable 4
end

break enter_region
commands
  printf "\nStop 4: half of the heads\n"
  disable 4
  enable 5
end

break tn_dist_sum_parts
commands
  printf "\nStop 5: the sum of both halves\n"
  disable 5
  enable 6
end

break tn__pipe_send_output
commands
  printf "\nStop 6: to the next stage\n"
  disable 6
  enable 7
end

break tn__pipe_take
commands
  printf "\nStop 7: what comes back\n"
  disable 7
  enable 8
end

break sum_parts_backward
commands
  printf "\nStop 8: back through block 0\n"
  disable 8
  enable 9
end

break tn__ddp_ready
commands
  printf "\nStop 9: the other batches\n"
  disable 9
  enable 10
end

break tn__parallel_sum_parts
commands
  printf "\nStop 10: one norm for eight ranks\n"
  disable 10
end

disable 2-10
run
