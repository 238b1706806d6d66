/* bench/learning.c, for test_learning.py. */
#include "bench/learning.c"
