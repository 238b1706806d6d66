/* What backends tell tn_build_info: one phrase, such as "cpu-v3". A string that stays. */
#ifndef TERN_CORE_BUILD_INFO_H
#define TERN_CORE_BUILD_INFO_H

extern const char *tn__build_info_backend;

#endif
