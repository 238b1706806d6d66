/* What backends report to tn_build_info: one phrase, such as "cpu-v3". The string must stay
 * valid. */
#ifndef TERN_CORE_BUILD_INFO_H
#define TERN_CORE_BUILD_INFO_H

extern const char *tn__build_info_backend;

#endif
