/* The library's operations, one line each: TN_OP(name) stands for the descriptor tn__op_name. The registry, and with it
 * the suite that checks every operation, is made from this list.
 */

/* elementwise/ */

/* reduce/ */

/* shape/ */
