/* The library's operations, one line each: TN_OP(name) stands for the descriptor tn__op_name. The registry, and with it
 * the suite that checks every operation, is made from this list.
 */

/* elementwise/ */

/* reduce/ */

/* shape/ */

/* linalg/ */
TN_OP(matmul)
TN_OP(linear)

/* index/ */
TN_OP(index_select)
TN_OP(scatter_rows)
TN_OP(gather)
TN_OP(scatter_add)

/* nn/ */
TN_OP(softmax)
TN_OP(log_softmax)
TN_OP(layer_norm)
TN_OP(rms_norm)
TN_OP(dropout)
TN_OP(embedding)
TN_OP(attention)
TN_OP(attention_qkv)

/* loss/ */
TN_OP(mse)
TN_OP(cross_entropy)
