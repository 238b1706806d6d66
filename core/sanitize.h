/* Whether this build runs under the address sanitizer: then no free memory is cached, so that use
 * after a free is found. Retired structs (tn__struct_retire) are not free. */
#ifndef TERN_CORE_SANITIZE_H
#define TERN_CORE_SANITIZE_H

#if defined(__SANITIZE_ADDRESS__)
#define TN__ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TN__ASAN 1
#endif
#endif
#ifndef TN__ASAN
#define TN__ASAN 0
#endif

#endif
