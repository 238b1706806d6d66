/* A search whose trials do what may go wrong, for test_search.py.
 *
 *     search_program FOLDER PROCESSES
 *
 * Trial i is worth i. Each says whether the processes that it starts would be told of it; that of
 * the first text ends badly behind its value.
 */
#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>

#define TEXT_64 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

int main(int argc, char **argv) {
    static const char *const texts[] = {"plain", "a, \"b\"", TEXT_64 TEXT_64 TEXT_64, TEXT_64};
    enum { TEXTS = sizeof(texts) / sizeof(*texts) };
    if (argc != 3) {
        return 2;
    }
    tn_on_error(tn_error_exit);
    tn_search_options options = tn_search_defaults();
    options.out = argv[1];
    options.processes = atoi(argv[2]);
    options.grid = true;
    const char *text;
    int64_t trial = -1;
    tn_search *search = tn_search_new(options);
    tn_search_choose_text(search, "text", &text, texts, TEXTS);
    while (tn_search_next(search)) {
        trial = tn_search_trial(search);
        const char *told = getenv("TERN_TRIAL");
        fprintf(stderr, "TERN_TRIAL is %s\n", told ? told : "not there");
        tn_square(tn_ones(TN_DIMS(4), TN_F32)); /* something to profile */
        tn_search_report(search, (double)trial);
    }
    int status = tn_search_end(search);
    return trial == 0 && options.processes > 0 ? 3 : status;
}
