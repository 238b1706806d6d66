/* What tests can ask of the stand-in for NCCL, in the process of a rank; libfake_nccl.so exports
 * it. */
#ifndef TERN_TESTS_EMULATOR_FAKE_NCCL_H
#define TERN_TESTS_EMULATOR_FAKE_NCCL_H

/* The communicators in which operations were launched, in order, numbered as they were made. Writes
 * at most `most`; returns how many launches there were. */
int fake_nccl_launches(int *communicators, int most);

/* The most operations of one communicator that were in progress at once. */
int fake_nccl_depth(void);

#endif
