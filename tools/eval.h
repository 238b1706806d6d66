/* `tern eval`. */
#ifndef TERN_TOOLS_EVAL_H
#define TERN_TOOLS_EVAL_H

int eval_main(int argc, char **argv);

#endif
