/* What tests can ask of the stand-in for cuDNN; libfake_cudnn.so exports it. */
#ifndef TERN_TESTS_EMULATOR_FAKE_CUDNN_H
#define TERN_TESTS_EMULATOR_FAKE_CUDNN_H

/* How many plans were run. */
int fake_cudnn_runs(void);

/* And how many were made. */
int fake_cudnn_plans(void);

/* The engine of the last one: 0 rounds f32, 1 adds in the order of arrival, 2 does neither. */
int fake_cudnn_engine(void);

#endif
