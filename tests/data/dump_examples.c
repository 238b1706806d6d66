/* All examples of a dataset, read by two threads: dump_examples FILE KIND PATH …
 *
 *     csv PATH MISSING KIND DELIMITER HEADER TARGET FEATURE …   MISSING: error, nan, drop;
 *                                KIND: classes, numbers; HEADER: header, plain; TARGET "": none
 *     images FOLDER HEIGHT WIDTH
 *     npy X Y
 *
 * FILE gets x and y, and the classes are printed, one a line. Or:
 *
 *     image PATH …               FILE gets u0, f0, u1, f1 and so on: each as u8 and as f32
 */
#include <tern/tern.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int number_of(const char *text, const char *const *words) {
    int i = 0;
    while (words[i] && strcmp(text, words[i]) != 0) {
        i++;
    }
    return i;
}

static tn_dataset *open_csv(char **argv) {
    tn_csv_options o = tn_csv_defaults();
    o.missing = (tn_csv_missing)number_of(argv[1], (const char *const[]){"error", "nan", NULL});
    o.target_kind = (tn_csv_target)number_of(argv[2], (const char *const[]){"classes", NULL});
    o.delimiter = argv[3][0];
    o.header = strcmp(argv[4], "header") == 0;
    o.target = argv[5][0] ? argv[5] : NULL;
    o.features = argv[6] ? (const char *const *)argv + 6 : NULL;
    return tn_csv_dataset(argv[0], o);
}

/* argv: KIND PATH … */
static tn_dataset *open_dataset(int argc, char **argv) {
    if (argc >= 7 && strcmp(argv[0], "csv") == 0) { return open_csv(argv + 1); }
    if (argc == 3 && strcmp(argv[0], "npy") == 0) { return tn_npy_dataset(argv[1], argv[2]); }
    if (argc == 4 && strcmp(argv[0], "images") == 0) {
        tn_image_folder_options o =
            TN_WITH(tn_image_folder, .height = atoll(argv[2]), .width = atoll(argv[3]));
        return tn_image_folder(argv[1], o);
    }
    fprintf(stderr, "dump_examples FILE KIND PATH …\n");
    exit(64);
}

static void add_images(tn_safetensors_writer *w, int count, char **paths) {
    char name[32];
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "u%d", i);
        tn_safetensors_writer_add(w, name, tn_image_read(paths[i], TN_U8));
        name[0] = 'f';
        tn_safetensors_writer_add(w, name, tn_image_read(paths[i], TN_F32));
    }
}

static void add_examples(tn_safetensors_writer *w, tn_dataset *d) {
    for (const char *const *name = d->classes; name && *name; name++) {
        printf("%s\n", *name);
    }
    tn_loader_options o = TN_WITH(tn_loader, .batch = d->size, .threads = 2);
    tn_loader *loader = tn_loader_new(d, tn_sequential_sampler(), o);
    tn_batch b;
    if (tn_loader_next(loader, &b)) { tn_safetensors_writer_add(w, "x", b.x); }
    if (b.y) { tn_safetensors_writer_add(w, "y", b.y); }
    tn_loader_free(loader);
}

int main(int argc, char **argv) {
    tn_on_error(tn_error_exit);
    TN_SCOPE;
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    if (argc > 3 && strcmp(argv[2], "image") == 0) {
        add_images(w, argc - 3, argv + 3);
    } else {
        add_examples(w, open_dataset(argc - 2, argv + 2));
    }
    return tn_safetensors_writer_save(w, argv[1]) == TN_OK ? 0 : 1;
}
