/* Paths into JSON values, a part of jq's notation, and texts made of what is there.
 *
 *     .name  ."a name"  ["a name"]   a member of an object
 *     []                             each element of a list
 *     [0]                            one element
 *
 * A text that neither begins with '.' nor has a '[' is not a path but the name of a member: "text",
 * "a.b". The first '.' of a path may be missing: "data[].title". */
#ifndef TERN_DATA_CORPUS_JSON_PATH_H
#define TERN_DATA_CORPUS_JSON_PATH_H

#include <stdbool.h>
#include <stdint.h>

enum { TN__PATH_LISTS = 16 /* at most, of one path, whose elements are all taken */ };

typedef enum tn__step_kind { TN__STEP_MEMBER, TN__STEP_EACH, TN__STEP_AT } tn__step_kind;

typedef struct tn__step {
    tn__step_kind kind;
    char *name;     /* of a member */
    uint32_t index; /* of an element */
} tn__step;

/* Zeros to begin with. */
typedef struct tn__json_path {
    tn__step *steps;
    int64_t count, capacity;
    int lists;                         /* steps that are [] */
    int64_t after[TN__PATH_LISTS + 1]; /* after[i]: the step that follows the i-th [], from 1; 0 */
} tn__json_path;

/* "{title}: {parts[].text}": literal texts and paths in turn. In a literal text {{ and }} are
 * braces, and \n, \t and \\ a newline, a tab and a backslash, since shells have no easy way to
 * write them. A text without braces is one path. Zeros to begin with. */
typedef struct tn__template_part {
    char *literal; /* NULL: the path */
    tn__json_path path;
} tn__template_part;
typedef struct tn__template {
    tn__template_part *parts;
    int64_t count, capacity;
} tn__template;

/* False after raising TN_EVALUE, which says what is wrong and where, or TN_ENOMEM. */
bool tn__template_read(tn__template *p, const char *text, const char *operation);
void tn__template_free(tn__template *p);

#endif
