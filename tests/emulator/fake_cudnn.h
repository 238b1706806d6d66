/* What tests can ask of the stand-in for cuDNN; libfake_cudnn.so exports it. */
#ifndef TERN_TESTS_EMULATOR_FAKE_CUDNN_H
#define TERN_TESTS_EMULATOR_FAKE_CUDNN_H

/* How many plans were run. */
int fake_cudnn_runs(void);

#endif
