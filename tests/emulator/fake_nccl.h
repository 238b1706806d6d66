/* What tests can ask of the stand-in for NCCL, in the process of a rank; libfake_nccl.so exports
 * it. */
#ifndef TERN_TESTS_EMULATOR_FAKE_NCCL_H
#define TERN_TESTS_EMULATOR_FAKE_NCCL_H

/* In which communicators operations were launched, in this order: the 0th, 1st, … that was made.
 * Writes at most `most`; returns how many launches there were. */
int fake_nccl_launches(int *communicators, int most);

/* How many operations of one communicator were under way at once, at most. */
int fake_nccl_depth(void);

#endif
