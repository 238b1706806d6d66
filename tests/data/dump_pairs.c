/* One step on prompts and completions: dump_pairs FILE PATTERN
 *
 * x, y        (B, T) the first batch of the shards that match PATTERN
 * table, head (V, D) a model that predicts a token from the one before it
 * loss, grad.table, grad.head
 */
#include <tern/tern.h>

int main(int argc, char **argv) {
    enum { BATCH = 4, LENGTH = 12, VOCAB = 257, WIDTH = 8 };
    if (argc != 3) { return 64; }
    tn_on_error(tn_error_exit);
    TN_SCOPE;
    tn_loader_options o = TN_WITH(tn_loader, .batch = BATCH);
    tn_loader *loader =
        tn_loader_new(tn_token_shards(argv[2], LENGTH, VOCAB), tn_sequential_sampler(), o);
    tn_batch b;
    if (!tn_loader_next(loader, &b)) { return 1; }
    tn_tensor *table = tn_set_requires_grad(tn_randn(TN_DIMS(VOCAB, WIDTH), TN_F32), true);
    tn_tensor *head = tn_set_requires_grad(tn_randn(TN_DIMS(VOCAB, WIDTH), TN_F32), true);
    tn_tensor *logits = tn_linear_op(tn_embedding_op(table, b.x), head, NULL);
    tn_tensor *loss = tn_cross_entropy(logits, b.y, TN_MEAN);
    tn_backward(loss);
    tn_safetensors_writer *w = tn_safetensors_writer_new();
    tn_safetensors_writer_add(w, "x", b.x);
    tn_safetensors_writer_add(w, "y", b.y);
    tn_safetensors_writer_add(w, "table", tn_detach(table));
    tn_safetensors_writer_add(w, "head", tn_detach(head));
    tn_safetensors_writer_add(w, "loss", tn_detach(loss));
    tn_safetensors_writer_add(w, "grad.table", tn_grad_of(table));
    tn_safetensors_writer_add(w, "grad.head", tn_grad_of(head));
    tn_status status = tn_safetensors_writer_save(w, argv[1]);
    tn_loader_free(loader);
    return status == TN_OK ? 0 : 1;
}
